//! TLS: the built daemon with certificates of a lab's own authority, commands and agents that trust it, and a login that
//! is kept for one user.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// An authority, its file, and a daemon's certificate by it.
struct Lab {
    dir: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
    daemon: Option<(Child, String)>,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("there is room");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        fs::write(dir.path().join("ca.pem"), authority.pem()).expect("there is room");
        let lab = Self { dir, authority, daemon: None };
        lab.issue(&["lab.test", "localhost"]);
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes the daemon a certificate for these names.
    fn issue(&self, names: &[&str]) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("parameters");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        fs::write(self.path("cert.pem"), certificate.pem()).expect("there is room");
        fs::write(self.path("key.pem"), key.serialize_pem()).expect("there is room");
    }

    fn serve(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mediator"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(self.path("data"));
        command.arg("--tls-cert").arg(self.path("cert.pem")).arg("--tls-key").arg(self.path("key.pem"));
        command
    }

    /// Starts the daemon; returns its port.
    fn start(&mut self) -> u16 {
        let log = fs::File::create(self.path("daemon.log")).expect("there is room");
        let mut serve = self.serve();
        serve.env("RUST_LOG", "trace").stdout(Stdio::piped()).stderr(log);
        let mut child = serve.spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on https://").expect("an address").to_owned();
        let port = address.rsplit_once(':').expect("a port").1.parse().expect("a number");
        self.daemon = Some((child, address));
        port
    }

    fn token(&self) -> String {
        fs::read_to_string(self.path("data/operator.token")).expect("a token").trim().to_owned()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let (child, _) = self.daemon.as_ref().expect("it runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("it is there");
    }

    /// Runs a command with nothing but these variables.
    fn run(&self, args: &[&str], env: &[(&str, &Path)], input: &str) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mediator"))
            .args(args)
            .env_clear()
            .env("HOME", self.dir.path())
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
        child.wait_with_output().expect("it ends")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn ends(output: &Output, code: i32, says: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    assert!(out.contains(says) || err.contains(says), "{says:?} is in neither {out:?} nor {err:?}");
}

/// A newcomer types nothing: the folder on this machine has the certificate, whatever name is in it.
#[test]
fn commands_on_the_daemons_machine_find_and_trust_it() {
    let mut lab = Lab::new();
    lab.issue(&["somewhere.else"]);
    lab.start();
    let data = lab.path("data");
    ends(&lab.run(&["nodes"], &[("MEDIATOR_DATA", &data)], ""), 0, "NODE");
    ends(&lab.run(&["--data", data.to_str().expect("text"), "doctor"], &[], ""), 0, "full");
    let log = fs::read_to_string(lab.path("daemon.log")).expect("it is there");
    assert!(log.contains("path=\"/v1/nodes\" status=200") && !log.contains(&lab.token()[..16]), "{log}");
    let mode = fs::metadata(data.join("certificate.pem")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn others_trust_an_authority_and_nobody_else() {
    let mut lab = Lab::new();
    let port = lab.start();
    let (ca, token) = (lab.path("ca.pem"), lab.token());
    let url = format!("https://localhost:{port}");
    let env = |ca: Option<&'static str>| {
        let mut env = vec![("MEDIATOR_URL", PathBuf::from(&url)), ("MEDIATOR_TOKEN", PathBuf::from(&token))];
        env.extend(ca.map(|name| ("MEDIATOR_CA_FILE", lab.path(name))));
        env
    };
    let run = |env: Vec<(&str, PathBuf)>| {
        let env: Vec<(&str, &Path)> = env.iter().map(|(name, value)| (*name, value.as_path())).collect();
        lab.run(&["nodes"], &env, "")
    };
    ends(&run(env(Some("ca.pem"))), 0, "NODE");
    ends(&run(env(None)), 3, "UnknownIssuer");
    // Another authority; a file that is none, or is not there.
    let other = Lab::new();
    fs::write(lab.path("other.pem"), fs::read(other.path("ca.pem")).expect("a file")).expect("there is room");
    ends(&run(env(Some("other.pem"))), 3, "certificate");
    fs::write(lab.path("empty.pem"), "").expect("there is room");
    ends(&run(env(Some("empty.pem"))), 3, "there is none in it");
    ends(&run(env(Some("missing.pem"))), 3, "missing.pem");
    // The right authority, another name.
    let wrong = vec![
        ("MEDIATOR_URL", PathBuf::from(format!("https://127.0.0.1:{port}"))),
        ("MEDIATOR_TOKEN", PathBuf::from(&token)),
        ("MEDIATOR_CA_FILE", ca),
    ];
    ends(&run(wrong), 3, "not valid for name");
    // No TLS where TLS is spoken, and the daemon goes on.
    let plain = vec![
        ("MEDIATOR_URL", PathBuf::from(format!("http://localhost:{port}"))),
        ("MEDIATOR_TOKEN", PathBuf::from(&token)),
    ];
    assert_eq!(run(plain).status.code(), Some(3));
    ends(&run(env(Some("ca.pem"))), 0, "NODE");
}

/// A certificate that was renewed is taken up without a restart; one that cannot be used changes nothing.
#[test]
fn the_certificate_is_read_again_on_sighup() {
    let mut lab = Lab::new();
    let port = lab.start();
    let (ca, token) = (lab.path("ca.pem"), PathBuf::from(lab.token()));
    let url = PathBuf::from(format!("https://localhost:{port}"));
    let works = |lab: &Lab| {
        let env = [("MEDIATOR_URL", url.as_path()), ("MEDIATOR_TOKEN", &token), ("MEDIATOR_CA_FILE", &ca)];
        lab.run(&["nodes"], &env, "").status.success()
    };
    assert!(works(&lab));
    let shown = fs::read_to_string(lab.path("data/certificate.pem")).expect("it is shown");
    fs::write(lab.path("cert.pem"), "no certificate").expect("there is room");
    lab.signal(rustix::process::Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(works(&lab), "what it had stays");
    lab.issue(&["another.name"]);
    lab.signal(rustix::process::Signal::HUP);
    let changed = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        fs::read_to_string(lab.path("data/certificate.pem")).expect("it is shown") != shown
    });
    assert!(changed && !works(&lab), "the new one has another name");
    let data = lab.path("data");
    ends(&lab.run(&["nodes"], &[("MEDIATOR_DATA", &data)], ""), 0, "NODE");
}

#[test]
fn what_cannot_be_used_is_said_before_anything_is_done() {
    let lab = Lab::new();
    let refused = |lab: &Lab, says: &str| {
        let output = lab.serve().output().expect("it ends");
        ends(&output, 1, says);
        assert!(!lab.path("data").exists());
    };
    fs::write(lab.path("key.pem"), KeyPair::generate().expect("a key").serialize_pem()).expect("there is room");
    refused(&lab, "cannot be used together");
    fs::write(lab.path("key.pem"), "").expect("there is room");
    refused(&lab, "key.pem: there is none in it");
    fs::remove_file(lab.path("cert.pem")).expect("it goes");
    refused(&lab, "cert.pem");
    ends(&lab.run(&["serve", "--tls-cert", "x"], &[], ""), 2, "--tls-key");
}

/// "keeps address and token in the user's configuration (0600)"
#[test]
fn a_login_is_kept_for_one_user_and_tried_first() {
    let mut lab = Lab::new();
    let port = lab.start();
    let (ca, token) = (lab.path("ca.pem"), lab.token());
    let url = format!("https://localhost:{port}");
    let login = ["login", &url, "--ca-file", ca.to_str().expect("text")];
    let kept = lab.path(".config/mediator/login.toml");
    // Nothing is kept of what does not work.
    ends(&lab.run(&login, &[], "mdt_wrong\n"), 4, "token");
    ends(&lab.run(&login, &[], "two words\n"), 2, "one word");
    ends(&lab.run(&["login", &url], &[], &token), 3, "UnknownIssuer");
    assert!(!kept.exists());
    ends(&lab.run(&login, &[], &format!("{token}\n")), 0, "logged in to https://localhost");
    assert_eq!(fs::metadata(&kept).expect("it is kept").permissions().mode() & 0o777, 0o600);
    ends(&lab.run(&["nodes"], &[], ""), 0, "NODE");
    // What is said for one command comes first.
    let (other, nowhere) = (PathBuf::from("http://127.0.0.1:9"), lab.path("nowhere"));
    assert_eq!(lab.run(&["nodes"], &[("MEDIATOR_URL", &other), ("MEDIATOR_TOKEN", &other)], "").status.code(), Some(3));
    ends(&lab.run(&["nodes"], &[("MEDIATOR_DATA", &nowhere)], ""), 3, "nowhere");
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o644)).expect("it is mine");
    ends(&lab.run(&["nodes"], &[], ""), 3, "others may read it");
    ends(&lab.run(&["logout"], &[], ""), 0, "logged out");
    ends(&lab.run(&["logout"], &[], ""), 0, "not logged in");
    ends(&lab.run(&["nodes"], &[], ""), 3, "mediator login");
}

/// An agent speaks TLS as the commands do.
#[test]
fn an_agent_works_over_tls() {
    let mut lab = Lab::new();
    let port = lab.start();
    let token = lab.path("token");
    fs::write(&token, lab.token()).expect("there is room");
    let file = lab.path("agent.toml");
    let write = |ca_file: &str| {
        let text = format!(
            "url = \"https://localhost:{port}\"\ntoken_file = \"token\"\nca_file = {ca_file:?}\nwork_dir = \"work\"\n\
             [[node]]\nid = \"b1\"\ncapabilities = [{{ capability = \"board\" }}]\n"
        );
        fs::write(&file, text).expect("there is room");
    };
    let agent = ["agent", "--config", file.to_str().expect("text")];
    write("missing.pem");
    ends(&lab.run(&agent, &[], ""), 3, "missing.pem");
    // Relative to the file, as other paths in it.
    write("ca.pem");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_mediator"))
        .args(agent)
        .env_remove("MEDIATOR_CA_FILE")
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let data = lab.path("data");
    let mut done = None;
    for _ in 0..100 {
        let output =
            lab.run(&["exec", "--require", "dut=board", "--", "echo", "over TLS"], &[("MEDIATOR_DATA", &data)], "");
        if output.status.success() {
            done = Some(output);
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = agent.kill();
    let _ = agent.wait();
    ends(&done.expect("the node appears"), 0, "over TLS");
}

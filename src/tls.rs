//! TLS: who the daemon is, and whom the commands and agents take for it.
//!
//! The daemon's certificate and key are files that are read again when it is told to. A command on the daemon's machine
//! that found it by its data folder trusts exactly the certificate that is kept there, whatever name is in it; all others
//! trust the authorities of `MEDIATOR_CA_FILE`, or those that browsers trust.

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

/// The file in the data folder with the certificate that the daemon shows.
pub const CERTIFICATE: &str = "certificate.pem";

/// Who the daemon is: its certificate chain and key, as they were last read.
#[derive(Debug)]
pub struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    /// Reads a certificate chain, the daemon's own first, and its key, both PEM.
    ///
    /// # Errors
    /// A sentence for people: a file cannot be read, is empty, or the two do not belong together.
    pub fn load(certificate: &Path, key: &Path) -> Result<Arc<Self>, String> {
        let current = RwLock::new(Arc::new(read(certificate, key)?));
        Ok(Arc::new(Self { certificate: certificate.to_owned(), key: key.to_owned(), current }))
    }

    /// Reads the files again; connections that are open keep what they began with.
    ///
    /// # Errors
    /// As [`Identity::load`]; then what was read before stays.
    pub fn reload(&self) -> Result<(), String> {
        let fresh = Arc::new(read(&self.certificate, &self.key)?);
        *self.current.write().expect("no holder panics") = fresh;
        Ok(())
    }

    /// Returns the certificate alone, in PEM: nothing of it is secret.
    pub fn shown(&self) -> String {
        use base64::Engine as _;
        let current = self.current.read().expect("no holder panics");
        let text =
            base64::prelude::BASE64_STANDARD.encode(current.cert.first().map_or(&[][..], |first| first.as_ref()));
        let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }

    /// Makes what takes the daemon's end of a handshake.
    pub fn acceptor(self: &Arc<Self>) -> TlsAcceptor {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions");
        let mut config =
            config.with_no_client_auth().with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().expect("no holder panics")))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let chain = certificates(certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| format!("cannot read the key {}: {}", key.display(), explain(&error)))?;
    CertifiedKey::from_der(chain, secret, &ring::default_provider()).map_err(|error| {
        let (certificate, key) = (certificate.display(), key.display());
        format!("the certificate {certificate} and the key {key} cannot be used together: {error}")
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |what: String| format!("cannot read the certificates of {}: {what}", path.display());
    let list: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(|e| failed(explain(&e)))?.collect();
    let list = list.map_err(|error| failed(explain(&error)))?;
    if list.is_empty() { Err(failed("there is none in it".into())) } else { Ok(list) }
}

/// Says it as people do.
fn explain(error: &rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        rustls::pki_types::pem::Error::NoItemsFound => "there is none in it".into(),
        other => format!("{other}"),
    }
}

/// Whom a client takes for the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Who the authorities that browsers trust vouch for.
    Public,
    /// Who the authorities in this PEM file vouch for, and nobody else.
    File(PathBuf),
    /// Who shows exactly the certificate in this PEM file, under whatever name.
    Only(PathBuf),
}

impl Trust {
    /// Returns what `MEDIATOR_CA_FILE` says.
    pub fn of_environment() -> Self {
        let file = std::env::var_os("MEDIATOR_CA_FILE").filter(|value| !value.is_empty());
        file.map_or(Self::Public, |file| Self::File(file.into()))
    }

    /// Returns whom to trust that was found by its data folder on this machine.
    pub fn of_folder(data: &Path) -> Self {
        match Self::of_environment() {
            Self::Public => Self::Only(data.join(CERTIFICATE)),
            given => given,
        }
    }

    /// Makes what connects to `https://` and `http://` addresses. Files are read only if `is_encrypted`.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn connector(&self, is_encrypted: bool) -> Result<HttpsConnector<HttpConnector>, String> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions");
        let config = match self {
            Self::File(file) if is_encrypted => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    roots
                        .add(certificate)
                        .map_err(|error| format!("{} has something else than authorities: {error}", file.display()))?;
                }
                builder.with_root_certificates(roots).with_no_client_auth()
            }
            Self::Only(file) if is_encrypted => {
                let only = certificates(file)?.remove(0);
                let verifier = Arc::new(Pinned { only, provider: provider() });
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
            _ => {
                let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
                builder.with_root_certificates(roots).with_no_client_auth()
            }
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(std::time::Duration::from_secs(10)));
        Ok(HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().wrap_connector(http))
    }
}

/// Takes one certificate for right, and no other. It was read from the daemon's own folder: no authority could say more.
#[derive(Debug)]
struct Pinned {
    only: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *end_entity == self.only {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::General("it is not the certificate that is kept in the daemon's data folder".into()))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

//! Steps as another user (`run_as`).
//!
//! The agent and its supervisors stay root, so that they can stop whatever a step has started; only the command becomes
//! the user. On Linux an identity belongs to a thread: a thread of its own takes it and starts the command, which
//! inherits it, supplementary groups included. (The standard library can set a child's user without `unsafe`, but its
//! groups only in unstable Rust.)
//!
//! Users are looked up through the host's name service, since in many labs they are in a directory and not in
//! `/etc/passwd`.

use std::ffi::CString;
use std::io;

use nix::unistd;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

/// Who runs a node's steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The user's home.
    pub home: String,
    /// What to become; none: the agent is that user already.
    pub identity: Option<Identity>,
}

/// An identity that a thread can take, if it is root.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

impl User {
    /// Finds the user that `text` names: `NAME` or `NAME:GROUP`.
    ///
    /// # Errors
    /// What is wrong: nobody has that name, or the agent may not become that user.
    pub fn find(text: &str) -> Result<Self, String> {
        let (name, group) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
        let user = unistd::User::from_name(name).map_err(|error| format!("looking up the user {name}: {error}"))?;
        let user = user.ok_or_else(|| format!("this host has no user {name:?}"))?;
        let gid = match group {
            None => user.gid,
            Some(group) => {
                let found = unistd::Group::from_name(group)
                    .map_err(|error| format!("looking up the group {group}: {error}"))?;
                found.ok_or_else(|| format!("this host has no group {group:?}"))?.gid
            }
        };
        let (home, own_uid) = (user.dir.to_string_lossy().into_owned(), unistd::geteuid());
        let found = |identity| Self { name: name.to_owned(), home, identity };
        if user.uid == own_uid && gid == unistd::getegid() {
            return Ok(found(None));
        }
        if !own_uid.is_root() {
            let own = unistd::User::from_uid(own_uid).ok().flatten();
            let own = own.map_or_else(|| own_uid.to_string(), |own| own.name);
            return Err(format!("the agent runs as {own} and cannot run steps as {text}: only root can"));
        }
        let named = CString::new(name).map_err(|_| format!("{name:?} is not a name"))?;
        let groups = unistd::getgrouplist(&named, gid).map_err(|error| format!("the groups of {name}: {error}"))?;
        let groups = groups.into_iter().map(unistd::Gid::as_raw).collect();
        Ok(found(Some(Identity { uid: user.uid.as_raw(), gid: gid.as_raw(), groups })))
    }
}

impl Identity {
    /// Does `what` as this user, on a thread of its own: nothing else of this process changes.
    ///
    /// # Errors
    /// The system's, when the identity cannot be taken; or what `what` returns.
    pub fn run<T: Send>(&self, what: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.take()?;
                what()
            });
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    }

    /// Groups first: without root they cannot be changed any more.
    fn take(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_exist_is_named() {
        let error = User::find("no-such-user").expect_err("there is none");
        assert_eq!(error, "this host has no user \"no-such-user\"");
        let error = User::find("root:no-such-group").expect_err("there is none");
        assert_eq!(error, "this host has no group \"no-such-group\"");
    }

    #[test]
    fn oneself_is_nobody_to_become_and_others_are_for_root() {
        let own = unistd::User::from_uid(unistd::geteuid()).ok().flatten().expect("whoever tests has a name");
        if own.gid == unistd::getegid() {
            assert_eq!(User::find(&own.name).expect("it is there").identity, None);
        }
        if own.uid.is_root() {
            let identity = User::find("daemon").expect("every system has it").identity.expect("it is another");
            let seen = identity.run(|| Ok((unistd::geteuid().as_raw(), unistd::getuid().as_raw())));
            assert_eq!(seen.expect("root may"), (identity.uid, identity.uid));
            assert!(unistd::geteuid().is_root(), "the other threads are as they were");
        } else {
            assert!(User::find("root").is_err_and(|error| error.contains("only root can")));
        }
    }
}

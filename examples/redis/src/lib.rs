//! A private `redis-server` on a socket in a directory of its own; both go when it is
//! dropped.
//!
//! `REDIS_SERVER` names another server binary and `TOKENBUCKET_MODULE` another module
//! file; else they are `redis-server` and the module that belongs to this source, which
//! is built where it must be.

#![forbid(unsafe_code)]

use std::env;
use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

/// A running server.
pub struct Server {
    dir: TempDir,
    process: Child,
}

impl Server {
    /// One without the module.
    ///
    /// # Errors
    /// Where it does not start; with its log.
    pub fn bare() -> anyhow::Result<Self> {
        Self::start(&[])
    }

    /// One with the module.
    ///
    /// # Errors
    /// Where the module cannot be built, or the server does not start.
    pub fn with_module() -> anyhow::Result<Self> {
        let module = module()?.canonicalize()?;
        Self::start(&["--loadmodule", module.to_str().context("the module's path is no text")?])
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.dir.path().join("socket").display())
    }

    /// A blocking connection.
    ///
    /// # Errors
    /// Where it has ended.
    pub fn connect(&self) -> anyhow::Result<redis::Connection> {
        Ok(redis::Client::open(self.url())?.get_connection()?)
    }

    fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("tb").tempdir()?;
        let binary = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let log = File::create(dir.path().join("redis.log"))?;
        let process = Command::new(&binary)
            .args(["--port", "0", "--unixsocket", "socket", "--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path())
            .args(arguments)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log)
            .spawn()
            .with_context(|| format!("cannot start {binary}"))?;
        let mut server = Self { dir, process };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !server.answers() {
            if server.process.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("{binary} did not start:\n{}", read_to_string(server.dir.path().join("redis.log"))?);
            }
            sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn answers(&self) -> bool {
        self.connect().is_ok_and(|mut connection| redis::cmd("PING").query::<String>(&mut connection).is_ok())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

/// The file of the module, which is in target/<profile>, as is this program or above it.
fn module() -> anyhow::Result<PathBuf> {
    if let Some(file) = env::var_os("TOKENBUCKET_MODULE") {
        return Ok(file.into());
    }
    let program = env::current_exe()?;
    let is_profile = |dir: &&Path| dir.join(".fingerprint").is_dir();
    let profile = program.ancestors().find(is_profile).context("not run by cargo: TOKENBUCKET_MODULE is to name the module")?;
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--package", "redis-tokenbucket", "--lib", "--target-dir"]);
    build.args(profile.parent()).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    ensure!(build.status()?.success(), "the module could not be built");
    Ok(profile.join("libredis_tokenbucket.so"))
}

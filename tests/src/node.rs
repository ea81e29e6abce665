//! One node: its files, its process, and what one can do to it from outside.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{client::Api, config::NodeAddress};

/// A graceful stop takes the leadership hand-over and the requests in flight, both bounded by their deadlines.
const STOP_MAX: Duration = Duration::from_secs(20);

pub struct Node {
    pub id: u16,
    pub api: Api,
    pub peer_port: u16,
    pub config_file: PathBuf,
    pub data_dir: PathBuf,
    log_file: PathBuf,
    environment: BTreeMap<String, String>,
    /// What it runs instead of [`binary`].
    program: Option<PathBuf>,
    /// What runs the program elsewhere: the beginning of its command line, or nothing.
    prefix: Vec<String>,
    child: Option<Child>,
}

/// The binary under test: `$ONCEWARD_BIN`, or the one beside the running test or bench.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("ONCEWARD_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().expect("the running program has a path");
    own.ancestors().skip(1).take(2).map(|dir| dir.join("onceward")).find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("there is no `onceward` near {}: build it first, or name it in ONCEWARD_BIN", own.display())
    })
}

impl Node {
    /// A node that keeps its files in `dir`; its config file is the caller's to write.
    pub fn new(address: &NodeAddress, api: Api, dir: PathBuf) -> Node {
        fs::create_dir_all(&dir).expect("a writable directory for the node");
        Node {
            id: address.id,
            api,
            peer_port: address.peer.port(),
            config_file: dir.join("node.toml"),
            data_dir: dir.join("data"),
            log_file: dir.join("log"),
            environment: BTreeMap::new(),
            program: None,
            prefix: Vec::new(),
            child: None,
        }
    }

    /// Runs another program than [`binary`].
    pub fn program(&mut self, program: PathBuf) {
        self.program = Some(program);
    }

    /// Has the program run by another one, which is given its command line behind `prefix` and becomes it.
    pub fn run_by(&mut self, prefix: Vec<String>) {
        self.prefix = prefix;
    }

    /// An environment variable from the next start on.
    pub fn env(&mut self, name: &str, value: &str) {
        self.environment.insert(name.to_owned(), value.to_owned());
    }

    pub fn init(&self) {
        let output = self.command("init").output().expect("the binary can be run");
        assert!(output.status.success(), "init of node {} failed: {output:?}", self.id);
    }

    /// Runs another command of the binary to its end.
    pub fn run(arguments: &[&str]) -> Output {
        Command::new(binary()).args(arguments).output().expect("the binary can be run")
    }

    pub fn start(&mut self) {
        assert!(!self.is_running(), "node {} runs already", self.id);
        let log = File::options().create(true).append(true).open(&self.log_file).expect("a writable log file");
        let mut command = self.command("start");
        command.envs(&self.environment).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("another handle of an open file")).stderr(log);
        self.child = Some(command.spawn().expect("the binary can be run"));
    }

    fn command(&self, name: &str) -> Command {
        let program = self.program.clone().unwrap_or_else(binary);
        let mut command = match self.prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.arg(name).arg("--config").arg(&self.config_file);
        command
    }

    /// The process' id; panics when it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap_or_else(|| panic!("node {} does not run", self.id)).id()
    }

    pub fn is_running(&mut self) -> bool {
        match &mut self.child {
            Some(child) => child.try_wait().expect("the child is ours").is_none(),
            None => false,
        }
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
        }
    }

    /// SIGTERM; panics unless the process ends with status 0 in time.
    pub async fn stop(&mut self) {
        self.terminate();
        let status = self.wait_exit(STOP_MAX).await;
        assert!(status.success(), "node {} ended with {status} after SIGTERM", self.id);
        let log = self.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(
            last.contains("closing the data directory"),
            "node {} ended before its store was closed: {last}",
            self.id
        );
    }

    /// Waits until the process ends by itself.
    pub async fn wait_exit(&mut self, at_most: Duration) -> ExitStatus {
        let status = self.exit_within(at_most).await;
        status.unwrap_or_else(|| panic!("node {} still runs after {at_most:?}", self.id))
    }

    /// How the process ended by itself, or none if it still runs by then.
    pub async fn exit_within(&mut self, at_most: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + at_most;
        let child = self.child.as_mut().unwrap_or_else(|| panic!("node {} does not run", self.id));
        loop {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                self.child = None;
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How the process ended, if it did although nobody asked it to.
    pub fn unexpected_exit(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("the child is ours")?;
        self.child = None;
        Some(status)
    }

    /// SIGTERM, and no waiting for what comes of it.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("process ids are positive");
        kill_process(pid, signal).expect("the child is ours");
    }

    /// Deletes the data directory of a node that does not run.
    pub fn wipe(&mut self) {
        assert!(!self.is_running(), "node {} still runs", self.id);
        fs::remove_dir_all(&self.data_dir).expect("the data directory can be deleted");
    }

    pub fn log_file(&self) -> &Path {
        &self.log_file
    }

    pub fn log(&self) -> String {
        fs::read(&self.log_file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until the log, after its first `skip` bytes, says `text`, whatever its case.
    pub async fn wait_log(&self, skip: usize, text: &str, at_most: Duration) {
        let deadline = Instant::now() + at_most;
        while !self.log()[skip..].to_lowercase().contains(&text.to_lowercase()) {
            assert!(Instant::now() < deadline, "the log of node {} does not say {text:?}", self.id);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Whatever state it is in: a paused process dies of SIGKILL too. Errors mean that it is gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

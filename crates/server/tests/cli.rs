//! The binary `onceward` as an operator meets it: exit codes, messages, signals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Long enough for anything that happens at all.
const PATIENCE: Duration = Duration::from_secs(30);

fn onceward(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onceward")).args(args).env_clear().output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come about");
        sleep(Duration::from_millis(20));
    }
}

/// A node of its own that runs until it is told to stop.
struct Running {
    process: Child,
    port: u16,
}

impl Running {
    fn start(dir: &Path, config: &str) -> Running {
        let port = free_port();
        let file = dir.join("node.toml");
        let data = dir.join("data");
        fs::write(
            &file,
            format!(
                "node.data_dir = {:?}\nhttp.listen = \"127.0.0.1:{port}\"\npeers.listen = \"127.0.0.1:{}\"\n{config}",
                data.to_str().unwrap(),
                free_port()
            ),
        )
        .unwrap();
        let file = file.to_str().unwrap();
        let founded = onceward(&["init", "--config", file]);
        assert!(founded.status.success(), "{}", stderr(&founded));
        assert_eq!(String::from_utf8(founded.stdout).unwrap().trim().len(), 32);
        let process = Command::new(env!("CARGO_BIN_EXE_onceward"))
            .args(["start", "--config", file, "--log-format", "json"])
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let running = Running { process, port };
        wait_for("readiness", || running.status("GET", "/readyz", "", "") == Some(200));
        running
    }

    fn status(&self, method: &str, target: &str, token: &str, body: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits for the end: the exit code and the log.
    fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.process.wait().unwrap().code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn wrong_usage_and_wrong_settings_exit_with_2_and_say_why() {
    for (args, says) in [
        (&["start", "--no-such-flag"][..], "--no-such-flag"),
        (&["start", "--set", "http.listen"], "KEY=VALUE"),
        (&["start", "--set", "http.lisen=x"], "did you mean http.listen?"),
        (&["start", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (&["start", "--http-listen", "0.0.0.0:4001"], "without tokens a node serves loopback only"),
        (&["config", "check", "--log-level", "loud"], "log.level must be"),
        (&["replace", "0", "--url", "http://127.0.0.1:1"], "0"),
    ] {
        let output = onceward(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn config_check_prints_what_is_in_effect_and_no_secret() {
    let output = onceward(&["config", "check", "--set", "peers.secret=correct-horse-battery", "--node-id", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("secret = \"(hidden)\"") && !text.contains("horse"), "{text}");
    assert!(text.parse::<toml::Table>().is_ok());
}

#[test]
fn a_peer_port_in_use_ends_the_start_with_3_and_only_when_the_data_directory_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = dir.path().join("node.toml");
    let data = dir.path().join("data");
    let config = format!(
        "node.data_dir = {:?}\nhttp.listen = \"127.0.0.1:{}\"\npeers.listen = \"{}\"\n",
        data.to_str().unwrap(),
        free_port(),
        taken.local_addr().unwrap()
    );
    fs::write(&file, config).unwrap();
    let file = file.to_str().unwrap();
    assert!(onceward(&["init", "--config", file]).status.success());
    let started = onceward(&["start", "--config", file]);
    assert_eq!(started.status.code(), Some(3), "{}", stderr(&started));
    assert!(stderr(&started).contains("in use"), "{}", stderr(&started));
    let last = stderr(&started).lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("onceward: "), "{}", stderr(&started));
    assert!(stderr(&started).contains("closing the data directory"), "{}", stderr(&started));
}

#[test]
fn a_node_serves_reloads_its_tokens_and_stops_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let secret_file = dir.path().join("token");
    fs::write(&secret_file, "first-secret\n").unwrap();
    let tokens =
        format!("[[auth.tokens]]\nname = \"ops\"\nrole = \"admin\"\nsecret_file = {:?}", secret_file.to_str().unwrap());
    let node = Running::start(dir.path(), &tokens);
    let policy = r#"{"rate": "1/h"}"#;
    let check = r#"{"checks": [{"policy": "api", "key": "k"}]}"#;
    assert_eq!(node.status("PUT", "/v1/policies/api", "first-secret", policy), Some(201));
    assert_eq!(node.status("POST", "/v1/limits/check", "first-secret", check), Some(200));
    assert_eq!(node.status("POST", "/v1/limits/check", "first-secret", check), Some(429));
    assert_eq!(node.status("POST", "/v1/limits/check", "second-secret", check), Some(401));

    fs::write(&secret_file, "second-secret\n").unwrap();
    node.signal(Signal::HUP);
    wait_for("the new token", || node.status("POST", "/v1/limits/check", "second-secret", check) == Some(429));
    assert_eq!(node.status("POST", "/v1/limits/check", "first-secret", check), Some(401));

    let url = format!("http://127.0.0.1:{}", node.port);
    let unknown = onceward(&["replace", "9", "--url", &url, "--token", "second-secret"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(stderr(&unknown).contains("there is no node 9"), "{}", stderr(&unknown));

    // A data directory belongs to one process, a cluster is founded once.
    let file = dir.path().join("node.toml");
    assert_eq!(onceward(&["init", "--config", file.to_str().unwrap()]).status.code(), Some(3));
    assert_eq!(onceward(&["start", "--config", file.to_str().unwrap()]).status.code(), Some(3));

    node.signal(Signal::TERM);
    let (code, log) = node.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("secret"), "{log}");
    for line in log.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    let again = onceward(&["init", "--config", file.to_str().unwrap()]);
    assert!(stderr(&again).contains("already belongs to cluster"), "{}", stderr(&again));
}

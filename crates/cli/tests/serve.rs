//! `trueshot serve` as a user starts it: it says where it is, answers there, keeps what it said it kept even when it is
//! killed, and stops when it is told.
#![allow(missing_docs)]
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trueshot"));
        command.args(["serve", "--port", "0", "--backbone", "omniglot-conv4", "--no-cache", "--data-dir"]);
        command.arg(folder).args(more).env_remove("TRUESHOT_TOKEN");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").expect("it says where it is").to_owned();
        Server { child, address }
    }

    fn ask(&self, verb: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!("{verb} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        write!(stream, "{head}content-length: {length}\r\n{headers}\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SUPPORT: &str = r#"{"rows":[[1,0,0],[0.9,0.1,0],[0,1,0],[0.1,0.9,0.2]],"labels":["a","a","b","b"]}"#;
const JSON: &str = "content-type: application/json\r\n";

#[test]
fn what_was_said_to_be_kept_outlives_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
    let made = server.ask("POST", "/api/v1/classifiers", JSON, SUPPORT);
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    let place = made.lines().find_map(|line| line.strip_prefix("location: ")).unwrap().to_owned();
    server.signal("-KILL");
    drop(server);
    let server = Server::start(folder.path(), &[]);
    let answer = server.ask("POST", &format!("{place}/predict"), JSON, r#"{"rows":[[0,1,0.1]]}"#);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""class":"b""#), "{answer}");
}

#[test]
fn it_stops_when_it_is_told_and_asks_for_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sixteen characters").unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_trueshot"))
        .args(["serve", "--port", "0", "--token-file"])
        .arg(&token)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no spaces"), "{refused:?}");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let mut server = Server::start(folder.path(), &["--token-file", token.to_str().unwrap()]);
    assert!(server.ask("GET", "/api/v1", "", "").starts_with("HTTP/1.1 401"));
    let right = "authorization: Bearer 0123456789abcdef\r\n";
    assert!(server.ask("GET", "/api/v1", right, "").starts_with("HTTP/1.1 200"));
    server.signal("-TERM");
    assert!(server.child.wait().unwrap().success(), "it ends well");
}

#[test]
fn a_refusal_arrives_though_the_body_is_long_and_unread() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let long = "x".repeat(8 << 20);
    let answer = server.ask("POST", "/api/v1/audit", "content-type: text/plain\r\n", &long);
    assert!(answer.starts_with("HTTP/1.1 415") && answer.contains("content type"), "{answer}");
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_trueshot"))
        .args(["serve", "--address", "0.0.0.0", "--data-dir"])
        .arg(folder.path())
        .env_remove("TRUESHOT_TOKEN")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains("needs a token\nhint: --token-file"), "{said}");
}

//! Tests of `trueshot serve` as a process: its address, its limits, stored classifiers after `kill -9`, and stopping.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running server; it is killed when the value is dropped.
pub struct ServerProcess {
    child: Child,
    address: String,
}

impl ServerProcess {
    pub fn start(folder: &Path, more: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_trueshot")), folder, more)
    }

    /// Starts a server with a limit of `descriptors` open files.
    fn start_with_descriptors(descriptors: usize, folder: &Path, more: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_trueshot")]);
        Self::start_by(shell, folder, more)
    }

    fn start_by(mut command: Command, folder: &Path, more: &[&str]) -> Self {
        serve(&mut command, folder, &["--no-cache", "--backbone", "omniglot-conv4"]).args(more);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").expect("it says where it is").to_owned();
        ServerProcess { child, address }
    }

    /// Sends a request and returns the whole response, with its headers.
    pub fn ask(&self, verb: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!("{verb} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        write!(stream, "{head}content-length: {length}\r\n{headers}\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Opens a connection and sends bytes. Reading from it fails after a minute, so no test hangs.
    fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    /// Starts an upload that announces `length` bytes.
    fn begin_upload(&self, length: usize) -> TcpStream {
        let head = format!("POST /api/v1/audit HTTP/1.1\r\nhost: {}\r\n{JSON}", self.address);
        self.send(format!("{head}content-length: {length}\r\n\r\n{{").as_bytes())
    }

    /// The peak memory of the server, in MiB.
    #[cfg(target_os = "linux")]
    fn peak_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() / 1024
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds the arguments of a server on any free port.
fn serve<'a>(command: &'a mut Command, folder: &Path, options: &[&str]) -> &'a mut Command {
    let command = command.args(["serve", "--port", "0", "--data-dir"]).arg(folder);
    command.args(options).env_remove("TRUESHOT_TOKEN")
}

/// Checks that a server does not start, and returns its messages.
fn refused(folder: &Path, options: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trueshot"));
    command.args(["serve", "--data-dir"]).arg(folder).args(options).env_remove("TRUESHOT_TOKEN");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The body of a request with four labelled rows of two classes.
const SUPPORT: &str = r#"{"rows":[[1,0,0],[0.9,0.1,0],[0,1,0],[0.1,0.9,0.2]],"labels":["a","a","b","b"]}"#;
const JSON: &str = "content-type: application/json\r\n";

#[test]
fn a_stored_classifier_survives_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &[]);
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
    let made = server.ask("POST", "/api/v1/classifiers", JSON, SUPPORT);
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    let place = made.lines().find_map(|line| line.strip_prefix("location: ")).unwrap().to_owned();
    server.signal("-KILL");
    drop(server);
    let server = ServerProcess::start(folder.path(), &[]);
    let answer = server.ask("POST", &format!("{place}/predict"), JSON, r#"{"rows":[[0,1,0.1]]}"#);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""class":"b""#), "{answer}");
}

#[test]
fn the_server_requires_its_token_and_stops_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sixteen characters").unwrap();
    let options = ["--port", "0", "--token-file", token.to_str().unwrap()];
    let said = refused(folder.path(), &options);
    assert!(said.contains("no spaces"), "{said}");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let mut server = ServerProcess::start(folder.path(), &options[2..]);
    assert!(server.ask("GET", "/api/v1", "", "").starts_with("HTTP/1.1 401"));
    let right = "authorization: Bearer 0123456789abcdef\r\n";
    assert!(server.ask("GET", "/api/v1", right, "").starts_with("HTTP/1.1 200"));
    server.signal("-TERM");
    assert!(server.child.wait().unwrap().success(), "it ends well");
}

#[test]
fn a_refusal_arrives_though_the_body_is_long_and_unread() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &[]);
    let long = "x".repeat(8 << 20);
    let answer = server.ask("POST", "/api/v1/audit", "content-type: text/plain\r\n", &long);
    assert!(answer.starts_with("HTTP/1.1 415") && answer.contains("content type"), "{answer}");
}

#[test]
fn an_address_that_others_reach_needs_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let said = refused(folder.path(), &["--address", "0.0.0.0"]);
    assert!(said.contains("needs a token\nhint: give one with --token-file"), "{said}");
}

/// What the server sends until it closes the connection.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        read => drop(read.expect("the server closes the connection")),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_connection_without_a_complete_request_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &["--header-timeout", "1", "--idle-timeout", "1"]);
    assert_eq!(rest(server.send(b"")), "", "nothing was sent");
    assert_eq!(
        rest(server.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n")),
        "",
        "headers without an end"
    );
    let head = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = rest(server.send(head.as_bytes()));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
}

#[test]
fn a_body_that_stalls_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &["--stall-timeout", "1"]);
    let answer = rest(server.begin_upload(1000));
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("the body stalled"), "{answer}");
    assert!(answer.contains("--stall-timeout"), "{answer}");
}

#[test]
fn a_client_that_does_not_take_its_answers_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &["--stall-timeout", "1"]);
    let requests = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(2000);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    // Until the server stops reading because it cannot write.
    loop {
        match stream.write(&requests.as_bytes()[sent % requests.len()..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            // The server has closed the connection.
            Err(_) => break,
        }
    }
    assert!(server.ask("GET", "/healthz", "", "").starts_with("HTTP/1.1 200"));
}

#[test]
fn connections_without_a_complete_request_do_not_block_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start_with_descriptors(128, folder.path(), &["--header-timeout", "600"]);
    let half_open: Vec<TcpStream> = (0..300).map(|_| server.send(b"GET / HTTP/1.1\r\n")).collect();
    for _ in 0..20 {
        assert!(server.ask("GET", "/healthz", "", "").starts_with("HTTP/1.1 200"));
    }
    drop(half_open);
}

#[test]
fn uploads_that_are_announced_and_not_sent_do_not_delay_others() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        ServerProcess::start(folder.path(), &["--stall-timeout", "600", "--timeout", "600", "--queue", "2"]);
    // Together they announce eight times the memory for bodies, and there are more of them than places in the queue.
    let stalled: Vec<TcpStream> = (0..32).map(|_| server.begin_upload(64 << 20)).collect();
    for _ in 0..5 {
        let answer = server.ask("POST", "/api/v1/audit", JSON, SUPPORT);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(stalled);
}

#[test]
fn the_server_stops_although_clients_are_silent() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--header-timeout", "600", "--stall-timeout", "600", "--timeout", "600"];
    let mut server = ServerProcess::start(folder.path(), &more);
    let half_open: Vec<TcpStream> = (0..50).map(|_| server.send(b"GET / HTTP/1.1\r\n")).collect();
    let stalled: Vec<TcpStream> = (0..10).map(|_| server.begin_upload(64 << 20)).collect();
    server.signal("-TERM");
    assert!(server.child.wait().unwrap().success());
    drop((half_open, stalled));
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = ServerProcess::start(folder.path(), &[]);
    let said = refused(folder.path(), &["--port", "0", "--backbone", "omniglot-conv4"]);
    assert!(said.contains("is in use by") && said.contains(&first.child.id().to_string()), "{said}");
    assert!(said.contains("hint: open the address that this server printed"), "{said}");
    assert!(said.contains("`trueshot serve -p 0 --data-dir DIR`"), "{said}");
    drop(first);
    ServerProcess::start(folder.path(), &[]);
}

#[test]
fn an_address_in_use_is_refused_with_what_to_do() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = ServerProcess::start(folder.path(), &[]);
    let port = first.address.rsplit_once(':').unwrap().1;
    let said = refused(other.path(), &["--port", port, "--backbone", "omniglot-conv4"]);
    for part in [
        format!("error: cannot listen on {}: ", first.address),
        format!("hint: if trueshot runs there already, open http://{}", first.address),
        "`trueshot serve -p 0 --data-dir DIR`".to_owned(),
    ] {
        assert!(said.contains(&part), "'{part}' is missing in: {said}");
    }
}

/// A multipart form with images, and its header.
#[cfg(target_os = "linux")]
fn form(pictures: &[(&str, &[u8])]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, bytes) in pictures {
        body.extend(
            format!("--edge\r\ncontent-disposition: form-data; name=\"images\"; filename=\"{name}\"\r\n\r\n")
                .bytes(),
        );
        body.extend_from_slice(bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--edge--\r\n");
    (
        format!("content-type: multipart/form-data; boundary=edge\r\ncontent-length: {}\r\n\r\n", body.len()),
        body,
    )
}

/// 49 megapixels with transparency in a few kilobytes, which take 196 MB when decoded.
#[cfg(target_os = "linux")]
fn large_picture() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbaImage::new(7000, 7000).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[test]
#[cfg(target_os = "linux")]
fn large_pictures_share_one_budget_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        ServerProcess::start(folder.path(), &["--jobs", "4", "--picture-memory", "256", "--timeout", "600"]);
    let large = large_picture();
    assert!(large.len() < 1_000_000, "{}", large.len());
    let (head, body) = form(&[("1.png", &large)]);
    let streams: Vec<TcpStream> = (0..4)
        .map(|_| {
            let start =
                format!("POST /api/v1/embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}");
            server.send(&[start.as_bytes(), &body].concat())
        })
        .collect();
    for stream in streams {
        let answer = rest(stream);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"row\""), "{answer}");
    }
    let peak = server.peak_memory();
    assert!(peak < 400, "{peak} MiB");
    let small =
        ServerProcess::start(&folder.path().join("other"), &["--picture-memory", "64", "--timeout", "600"]);
    let start = format!("POST /api/v1/embed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}");
    let answer = rest(small.send(&[start.as_bytes(), &body].concat()));
    assert!(answer.contains("decoding takes 189 MiB of memory, and 64 MiB are allowed"), "{answer}");
}

#[test]
fn the_help_has_the_defaults_that_the_documentation_names() {
    let help = Command::new(env!("CARGO_BIN_EXE_trueshot")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let default = |option: &str| {
        let (_, rest) =
            help.split_once(&format!("--{option} <")).unwrap_or_else(|| panic!("no --{option}: {help}"));
        let (_, rest) = rest.split_once("[default: ").unwrap_or_else(|| panic!("no default of {option}"));
        rest.split_once(']').unwrap().0.replace(['\n', ' '], "")
    };
    for (option, expected) in [
        ("address", "127.0.0.1"),
        ("port", "7878"),
        ("max-body", "64"),
        ("max-pixels", "50"),
        ("picture-memory", "384"),
        ("timeout", "60"),
        ("jobs", "onepercore"),
        ("queue", "256"),
        ("connections", "512"),
        ("header-timeout", "10"),
        ("stall-timeout", "10"),
        ("idle-timeout", "75"),
    ] {
        assert_eq!(default(option), expected, "--{option}");
    }
}

#[test]
fn it_says_how_to_stop_it_and_names_damaged_classifiers() {
    let folder = tempfile::tempdir().unwrap();
    let classifiers = folder.path().join("classifiers");
    std::fs::create_dir(&classifiers).unwrap();
    let damaged = classifiers.join(format!("{}.safetensors", "0".repeat(32)));
    std::fs::write(&damaged, b"nonsense").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trueshot"));
    let mut child = serve(&mut command, folder.path(), &["--no-cache", "--backbone", "omniglot-conv4"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let warning = lines.next().unwrap().unwrap();
    assert!(warning.contains(&"0".repeat(32)) && warning.contains("is skipped"), "{warning}");
    assert_eq!(lines.next().unwrap().unwrap(), "serving the page and the API; press Ctrl-C to stop");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success(), "it ends well");
    assert!(damaged.exists());
}

#[test]
fn the_built_in_backbone_is_used_unless_another_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trueshot"));
    serve(&mut command, folder.path(), &["--no-cache"]);
    let usual = ServerProcess::spawn(command).ask("GET", "/api/v1", "", "");
    assert!(usual.contains(r#""embedder":"efficientnet-lite0 "#), "{usual}");
    let named = ServerProcess::start(folder.path(), &[]).ask("GET", "/api/v1", "", "");
    assert!(named.contains(r#""embedder":"omniglot-conv4"#), "{named}");
}

#[test]
fn a_token_may_be_in_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trueshot"));
    serve(&mut command, folder.path(), &["--no-cache", "--backbone", "omniglot-conv4"]);
    command.env("TRUESHOT_TOKEN", "0123456789abcdef");
    let server = ServerProcess::spawn(command);
    assert!(server.ask("GET", "/api/v1", "", "").starts_with("HTTP/1.1 401"));
    let right = "authorization: Bearer 0123456789abcdef\r\n";
    assert!(server.ask("GET", "/api/v1", right, "").starts_with("HTTP/1.1 200"));
}

#[test]
#[cfg(unix)]
fn a_token_that_is_not_utf_8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trueshot"));
    serve(&mut command, folder.path(), &["--no-cache"]);
    command.env("TRUESHOT_TOKEN", std::ffi::OsStr::from_bytes(b"0123456789abcde\xff"));
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("TRUESHOT_TOKEN is not UTF-8"), "{said}");
}

#[test]
fn a_downloaded_classifier_is_what_predict_takes() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &[]);
    let made = server.ask("POST", "/api/v1/classifiers", JSON, SUPPORT);
    let place = made.lines().find_map(|line| line.strip_prefix("location: ")).unwrap().to_owned();
    let mut stream = server.send(
        format!("GET {place}/download HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
    );
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    std::fs::write(folder.path().join("classifier.safetensors"), &answer[end..]).unwrap();
    let rows = trueshot::Embeddings::from_rows(vec![0.0, 1.0, 0.1], 3, vec!["?".into()]).unwrap();
    let new = folder.path().join("new.safetensors");
    rows.write(&new).unwrap();
    let predicted = Command::new(env!("CARGO_BIN_EXE_trueshot"))
        .args(["predict", "classifier.safetensors", "new.safetensors", "--format", "jsonl"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&predicted.stdout).into_owned();
    assert!(predicted.status.success() && said.contains(r#""class":"b""#), "{predicted:?}");
}

#[test]
fn the_limit_on_descriptors_is_raised_where_that_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -S -n 128 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_trueshot")]);
    let server =
        ServerProcess::start_by(shell, folder.path(), &["--header-timeout", "600", "--connections", "400"]);
    let mut first = server.send(b"GET /healthz HTTP/1.1\r\n");
    let others: Vec<TcpStream> = (0..300).map(|_| server.send(b"GET / HTTP/1.1\r\n")).collect();
    assert!(server.ask("GET", "/healthz", "", "").starts_with("HTTP/1.1 200"));
    first.write_all(b"host: localhost\r\nconnection: close\r\n\r\n").unwrap();
    assert!(rest(first).starts_with("HTTP/1.1 200"), "there was room for all");
    drop(others);
}

#[test]
fn a_complete_request_is_answered_though_the_server_is_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = ServerProcess::start(folder.path(), &[]);
    let row = |number: usize| {
        (0..64).map(|place| ((number * 7 + place * 13) % 97).to_string()).collect::<Vec<_>>().join(",")
    };
    let rows: Vec<String> = (0..3000).map(|number| format!("[{}]", row(number))).collect();
    let labels: Vec<String> = (0..3000).map(|number| (number % 10).to_string()).collect();
    let body = format!(r#"{{"rows":[{}],"labels":[{}]}}"#, rows.join(","), labels.join(","));
    let head = format!(
        "POST /api/v1/audit HTTP/1.1\r\nhost: localhost\r\n{JSON}content-length: {}\r\n\r\n",
        body.len()
    );
    let working = server.send(format!("{head}{body}").as_bytes());
    // Waits until the request is received: it is one of two in flight, or has been answered.
    loop {
        let figures = server.ask("GET", "/metrics", "", "");
        if figures.contains("in_flight 2") || figures.contains(r#"route="/api/v1/audit""#) {
            break;
        }
    }
    server.signal("-TERM");
    let answer = rest(working);
    assert!(answer.starts_with("HTTP/1.1 200"), "{}", &answer[..answer.len().min(300)]);
    assert!(server.child.wait().unwrap().success());
}

/// The inodes of the sockets of a process.
#[cfg(target_os = "linux")]
fn sockets(pid: u32) -> Vec<String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    links.filter_map(inode).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn it_talks_to_its_clients_only() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(folder.path(), &[]);
    assert!(server.ask("POST", "/api/v1/classifiers", JSON, SUPPORT).starts_with("HTTP/1.1 201"));
    let port: u16 = server.address.rsplit_once(':').unwrap().1.parse().unwrap();
    let own = sockets(server.child.id());
    for kind in ["tcp", "tcp6", "udp", "udp6"] {
        let table = std::fs::read_to_string(format!("/proc/net/{kind}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if own.iter().any(|inode| inode == fields[9]) {
                assert!(fields[1].ends_with(&format!(":{port:04X}")), "{kind}: {line}");
            }
        }
    }
}

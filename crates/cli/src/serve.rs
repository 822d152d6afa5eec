//! `trueshot serve`: serves the HTTP API and the web page, by default on the loopback address. The server itself is the
//! crate `trueshot-server`; this file turns options into its settings. Start with [`run`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use trueshot_server::{Access, App, Limits, ServerSettings};
use trueshot_vision::backbone::EFFICIENTNET_ARCHITECTURE;

use crate::backbone_argument::BackboneArgument;
use crate::messages::{hinted, say};
use crate::output;

/// The environment variable for the token. There is no option for it, because other users of the machine can see the
/// arguments of a command.
const TOKEN_VARIABLE: &str = "TRUESHOT_TOKEN";
/// The minimum length of a token; shorter ones can be guessed.
const MIN_TOKEN_LEN: usize = 16;

/// The default of `--port`.
const DEFAULT_PORT: u16 = 7878;

/// Serve an HTTP API and a page for the browser: audit, fit, predict
#[derive(Args)]
pub struct Arguments {
    /// Listen on this address; any address other than loopback requires a token
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Listen on this port; 0 selects a free port
    #[arg(short, long, value_name = "N", default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Store classifiers in DIR [default: trueshot in the user data directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Require the token in FILE (or in the variable TRUESHOT_TOKEN), sent as 'Authorization: Bearer TOKEN'
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Also accept requests for this host name, besides localhost and IP addresses; can be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    #[command(flatten)]
    backbone: BackboneArgument,
    #[command(flatten)]
    limits: LimitArguments,
}

/// Limits on the resources of requests and connections.
#[derive(Args)]
#[command(next_help_heading = "Limits")]
struct LimitArguments {
    /// Refuse requests with a body larger than this, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_body: u32,
    /// Refuse images larger than this, in millions of pixels
    #[arg(long, value_name = "MP", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    max_pixels: u32,
    /// Use at most this memory for decoding images, in MiB, over all threads; refuse an image that needs more
    #[arg(long, value_name = "MIB", default_value_t = 384, value_parser = clap::value_parser!(u32).range(16..))]
    picture_memory: u32,
    /// End requests that take longer than this, in seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
    /// Compute N requests at the same time [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Let N requests wait in the queue; refuse further ones with status 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: u16,
    /// Keep at most N connections open; then close the one that has been silent longest
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Close connections whose headers take longer than this to arrive, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    header_timeout: u32,
    /// Give up on clients that send less than 10 KiB of a body, or read nothing of a response, in this time, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    stall_timeout: u32,
    /// Close connections without a request for this time, in seconds
    #[arg(long, value_name = "S", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    idle_timeout: u32,
}

/// How long to wait for work that cannot be interrupted after the server has stopped.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Runs `trueshot serve` until Ctrl-C or SIGTERM.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let token = token(arguments.token_file.as_deref())?;
    anyhow::ensure!(
        token.is_some() || arguments.address.is_loopback(),
        hinted(
            format!("others can reach the server on {}, so it needs a token", arguments.address),
            format!("give one with --token-file FILE or the variable {TOKEN_VARIABLE}")
        )
    );
    let data_dir = match &arguments.data_dir {
        Some(folder) => folder.clone(),
        None => default_data_folder(&|name| std::env::var_os(name).map(PathBuf::from))
            .ok_or_else(|| hinted("the user data directory is not known", "give one with --data-dir"))?,
    };
    let settings = ServerSettings {
        data_dir,
        access: Access::new(arguments.allow_host.clone(), token.as_deref()),
        limits: arguments.limits.limits(),
    };
    let default = || arguments.backbone.find_named(EFFICIENTNET_ARCHITECTURE);
    let backbone = arguments.backbone.find()?.map_or_else(default, Ok)?;
    let embedder = arguments.backbone.server_embedder(backbone)?;
    let address = SocketAddr::new(arguments.address, arguments.port);
    let (app, warnings) = App::new(embedder, settings).map_err(add_lock_hint)?;
    for warning in warnings {
        say!("warning: {warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let listener =
            tokio::net::TcpListener::bind(address).await.map_err(|error| cannot_listen(address, &error))?;
        let stop = trueshot_server::stop_signal().context("cannot catch Ctrl-C")?;
        output::print_escaped(&format!("http://{}\n", listener.local_addr()?))?;
        say!("serving the page and the API; press Ctrl-C to stop");
        trueshot_server::serve(listener, app, stop).await;
        Ok(())
    });
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    outcome
}

/// How to start a second server next to one that runs.
const SECOND_SERVER: &str = "start a second server with `trueshot serve -p 0 --data-dir DIR`";

/// Adds a hint to the error that another server uses the folder.
fn add_lock_hint(error: trueshot::Error) -> anyhow::Error {
    match error {
        trueshot::Error::Locked { .. } => hinted(
            error.to_string(),
            format!(
                "open the address that this server printed (by default http://127.0.0.1:{DEFAULT_PORT}), or \
                 {SECOND_SERVER}"
            ),
        ),
        error => error.into(),
    }
}

/// The error for an address that is not available, with a hint if it is in use.
fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> anyhow::Error {
    let message = format!("cannot listen on {address}: {error}");
    match error.kind() {
        std::io::ErrorKind::AddrInUse => hinted(
            message,
            format!("if trueshot runs there already, open http://{address}; otherwise {SECOND_SERVER}"),
        ),
        _ => anyhow::anyhow!(message),
    }
}

impl LimitArguments {
    /// The limits of the server. The memory for all bodies has no option; a large `--max-body` raises it.
    fn limits(&self) -> Limits {
        let defaults = Limits::default();
        Limits {
            body: (self.max_body as usize) << 20,
            bodies: defaults.bodies,
            pixels: u64::from(self.max_pixels) * 1_000_000,
            picture_memory: u64::from(self.picture_memory) << 20,
            request_time: Duration::from_secs(self.timeout.into()),
            concurrent_requests: self.jobs.map_or(defaults.concurrent_requests, usize::from),
            queued_requests: self.queue.into(),
            connections: self.connections as usize,
            header_time: Duration::from_secs(self.header_timeout.into()),
            stall_time: Duration::from_secs(self.stall_timeout.into()),
            idle_time: Duration::from_secs(self.idle_timeout.into()),
        }
    }
}

/// The token in the file or, without one, in the environment variable; `None` if there is neither. White space around
/// the token is removed, such as the line break at the end of a file.
fn token(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let text = match file {
        Some(path) => {
            Some(std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?)
        }
        None => match std::env::var_os(TOKEN_VARIABLE).map(std::ffi::OsString::into_string).transpose() {
            Ok(token) => token,
            Err(_) => anyhow::bail!("{TOKEN_VARIABLE} is not UTF-8; a token may have ASCII characters only"),
        },
    };
    let Some(token) = text.map(|token| token.trim().to_owned()) else { return Ok(None) };
    let is_valid = token.bytes().all(|byte| byte.is_ascii_graphic());
    anyhow::ensure!(is_valid, "the token may have printable ASCII characters only, and no spaces");
    let length = token.len();
    anyhow::ensure!(
        length >= MIN_TOKEN_LEN,
        hinted(
            format!("the token has {length} characters; at least {MIN_TOKEN_LEN} are needed"),
            "`openssl rand -hex 16` generates one"
        )
    );
    Ok(Some(token))
}

/// The folder `trueshot` in `$XDG_DATA_HOME`, `%LOCALAPPDATA%` or `~/.local/share`. Relative paths in these variables
/// are ignored, as the XDG specification requires.
fn default_data_folder(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/share"));
    let folder = absolute("XDG_DATA_HOME").or_else(|| absolute("LOCALAPPDATA")).or_else(home)?;
    Some(folder.join("trueshot"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifiers_are_stored_in_the_data_folder_of_the_user() {
        let folder = |variables: &[(&str, &str)]| {
            let find = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, path)| PathBuf::from(path))
            };
            default_data_folder(&find)
        };
        let home = ("HOME", "/home/ada");
        assert_eq!(folder(&[home]), Some("/home/ada/.local/share/trueshot".into()));
        assert_eq!(folder(&[home, ("XDG_DATA_HOME", "/data")]), Some("/data/trueshot".into()));
        assert_eq!(
            folder(&[home, ("XDG_DATA_HOME", "relative")]),
            Some("/home/ada/.local/share/trueshot".into())
        );
        assert_eq!(folder(&[]), None);
    }
}

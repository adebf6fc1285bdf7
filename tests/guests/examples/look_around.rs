//! Searches for anything of the machine that it runs on, through the standard library, and reports what it found. The
//! row's metadata has a port on which the test listens.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::Read;
use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, thread};

use rollout_sdk::log::{self, Refused};
use rollout_sdk::*;
use rollout_test_guests::{Honest, report};

struct LookAround;

#[derive(serde::Deserialize)]
struct Row {
    port: u16,
}

impl Workflow for LookAround {
    fn run(ctx: Context) -> Result<Output> {
        let Row { port } = ctx.metadata()?;
        let mut found = Vec::new();
        let mut note = |what: &str, it: Option<String>| {
            found.extend(it.map(|it| json!({"what": what, "found": it})));
        };
        for (name, value) in env::vars_os() {
            note("environment", Some(format!("{name:?}={value:?}")));
        }
        for argument in env::args_os() {
            note("argument", Some(format!("{argument:?}")));
        }
        for path in ["/", ".", "..", "/etc", "/proc/self", "/tmp"] {
            note("directory", fs::read_dir(path).ok().map(|_| path.to_owned()));
        }
        for path in ["/etc/passwd", "/proc/self/environ", "/dev/null", "Cargo.toml"] {
            note("file", File::open(path).ok().map(|_| path.to_owned()));
        }
        for path in ["/tmp/written-by-a-guest", "written-by-a-guest"] {
            note("written", fs::write(path, "x").ok().map(|()| path.to_owned()));
        }
        let mut input = String::new();
        let read = std::io::stdin().read_to_string(&mut input).unwrap_or(0);
        note("input", (read > 0).then_some(input));
        note("connection", TcpStream::connect(("127.0.0.1", port)).ok().map(|_| port.to_string()));
        note("listener", TcpListener::bind("127.0.0.1:0").ok().map(|_| "tcp".to_owned()));
        let sent =
            UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", ("127.0.0.1", port)));
        note("datagram", sent.ok().map(|_| "sent".to_owned()));
        let address = ("localhost", port).to_socket_addrs().ok().and_then(|mut all| all.next());
        note("name", address.map(|address| address.to_string()));
        if let Err(error) = Command::new("true").status() {
            log::refused(Refused::Process, format_args!("look_around: {}", error.kind()));
        }
        note("thread", thread::Builder::new().spawn(|| ()).ok().map(|_| "spawned".to_owned()));
        let random = format!("{:016x}", RandomState::new().hash_one(0));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Ok(report(&ctx, json!({"found": found, "random": random, "now": now})))
    }
}

export!(workflow = LookAround, grader = Honest);

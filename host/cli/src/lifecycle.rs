//! What a service manager gives a server and is told by it, each only where the environment says that there
//! is one: a socket that it listens on itself, that the server is ready, reads its files again or
//! stops, and that it is alive.

use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use rollout_server::ServerTls;

/// Added to the time that stopping takes before a service manager ends it: for commands and slow disks.
const STOP_TIME_SPARE: Duration = Duration::from_secs(30);

/// The socket that this process was started with (`LISTEN_FDS`), if it was. It is to be asked for
/// once, before there are threads.
pub(super) fn passed_socket() -> Result<Option<TcpListener>> {
    let mut passed = sd_notify::listen_fds().context("LISTEN_FDS, LISTEN_PID")?;
    let Some(descriptor) = passed.next() else { return Ok(None) };
    if passed.len() > 0 {
        bail!("LISTEN_FDS: {} sockets were passed, and one is listened on", passed.len() + 1);
    }
    // SAFETY: whoever started this process opened the descriptor for it and says so by its id in
    // LISTEN_PID; nothing else here knows of it, and this is the only place that takes it.
    let socket = unsafe { TcpListener::from_raw_fd(descriptor) };
    // That of another kind of socket, or of none, is no address of the network.
    let address = socket.local_addr();
    address.context("LISTEN_FDS: what was passed is no socket of the network that can be listened on")?;
    Ok(Some(socket))
}

/// The folders that a file is in which may be replaced: by its name, and where that leads.
pub(super) fn folders_of(file: &Path) -> Vec<PathBuf> {
    let resolved = std::fs::canonicalize(file).ok();
    let all = [Some(file), resolved.as_deref()].into_iter().flatten();
    // A name alone is in the folder that this process is in.
    let folder = |file: &Path| match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    all.map(folder).collect()
}

/// Says that requests are answered from here on.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Says that it ends, and how long that may take.
pub(super) fn stopping(drain: Duration) {
    let time = u32::try_from((drain + STOP_TIME_SPARE).as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::Stopping, NotifyState::Status("draining"), NotifyState::ExtendTimeoutUsec(time)]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager of NOTIFY_SOCKET cannot be told how this server is");
    }
}

/// Says again and again that this process is alive, where somebody ends it otherwise. From a task,
/// because it is not when its tasks stand still.
pub(super) async fn keep_watchdog_quiet() {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    let mut interval = tokio::time::interval((within / 2).max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

/// Reads the certificate again when SIGHUP says so. A terminal that closes, or a service manager that
/// means to reload, does not end a server.
pub(super) async fn reload_at_hangups(tls: Option<ServerTls>) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::warn!(%error, "SIGHUP cannot be ignored and ends this server");
            return;
        }
    };
    while hangups.recv().await.is_some() {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            tell(&[NotifyState::Reloading, now]);
        }
        match &tls {
            Some(tls) => reload(tls.clone()).await,
            None => {
                tracing::info!("SIGHUP is ignored: the configuration is read at the start; SIGTERM stops");
            }
        }
        tell(&[NotifyState::Ready]);
    }
}

async fn reload(tls: ServerTls) {
    match tokio::task::spawn_blocking(move || tls.reload()).await {
        Ok(Ok(())) => tracing::info!("the certificate and its key were read again"),
        Ok(Err(why)) => tracing::error!(%why, "the certificate is not replaced; the one before stays"),
        Err(error) => tracing::error!(%error, "the certificate is not replaced; the one before stays"),
    }
}

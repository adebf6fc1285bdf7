//! Integration with a service manager, such as systemd: socket activation, notifications that the server is
//! ready, reloading or stopping, and the watchdog. Each is active only if the environment asks for it.

use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use rollout_server::ServerTls;

/// Time for commands and slow disks, which is added to the drain time in the stop timeout that the service
/// manager is given.
const STOP_TIME_SPARE: Duration = Duration::from_secs(30);

/// Returns the socket that the service manager passed (`LISTEN_FDS`), if any.
///
/// Must be called once, before threads start.
pub(super) fn passed_socket() -> Result<Option<TcpListener>> {
    let mut passed = sd_notify::listen_fds().context("LISTEN_FDS, LISTEN_PID")?;
    let Some(descriptor) = passed.next() else { return Ok(None) };
    if passed.len() > 0 {
        bail!("LISTEN_FDS: {} sockets were passed; the server listens on one", passed.len() + 1);
    }
    // SAFETY: the service manager opened the descriptor for this process, which LISTEN_PID confirms, and no
    // other code of this process uses it.
    let socket = unsafe { TcpListener::from_raw_fd(descriptor) };
    // Only a network socket has a network address.
    let address = socket.local_addr();
    address.context("LISTEN_FDS: the passed descriptor is not a listening network socket")?;
    Ok(Some(socket))
}

/// Returns the folders of a file that may be replaced: that of its path and that of the target of a link.
pub(super) fn folders_of(file: &Path) -> Vec<PathBuf> {
    let resolved = std::fs::canonicalize(file).ok();
    let all = [Some(file), resolved.as_deref()].into_iter().flatten();
    // A bare file name is in the working directory.
    let folder = |file: &Path| match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    all.map(folder).collect()
}

/// Notifies the service manager that the server answers requests.
pub(super) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Notifies the service manager that the server stops, and how long that may take.
pub(super) fn stopping(drain: Duration) {
    let time = u32::try_from((drain + STOP_TIME_SPARE).as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::Stopping, NotifyState::Status("draining"), NotifyState::ExtendTimeoutUsec(time)]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager of NOTIFY_SOCKET");
    }
}

/// Sends keep-alive messages to the service manager's watchdog, if there is one.
///
/// Runs as a task, so that the messages stop if the runtime hangs.
pub(super) async fn feed_watchdog() {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    let mut interval = tokio::time::interval((within / 2).max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

/// Reloads the certificate on SIGHUP. The signal, also sent by a closing terminal, does not stop the server.
pub(super) async fn reload_at_hangups(tls: Option<ServerTls>) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::warn!(%error, "cannot handle SIGHUP, which will stop this server");
            return;
        }
    };
    while hangups.recv().await.is_some() {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            notify(&[NotifyState::Reloading, now]);
        }
        match &tls {
            Some(tls) => reload(tls.clone()).await,
            None => {
                tracing::info!(
                    "SIGHUP is ignored: the configuration is read only at the start; SIGTERM stops the server"
                );
            }
        }
        notify(&[NotifyState::Ready]);
    }
}

async fn reload(tls: ServerTls) {
    match tokio::task::spawn_blocking(move || tls.reload()).await {
        Ok(Ok(())) => tracing::info!("certificate and key reloaded"),
        Ok(Err(why)) => tracing::error!(%why, "cannot reload the certificate; the previous one stays in use"),
        Err(error) => tracing::error!(%error, "cannot reload the certificate; the previous one stays in use"),
    }
}

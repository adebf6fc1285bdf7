//! The command `top`, which shows a running server in the terminal.

mod client;
mod conversation;
mod draw;
mod palette;
mod plain;
mod screen;
mod view;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::print::out;
use super::setup::StopSignal;
use super::{Exit, setup};
use client::{PageClient, Received, Wanted};
use palette::Palette;
use rollout_outbound::Secret;
use rollout_page::HostData;
use screen::Screen;
use view::View;

/// Environment variable with the key, unless an option names another one.
const KEY_VARIABLE: &str = "ROLLOUT_HOST_KEY";

/// Shows the rollouts of a running server in the terminal: running, queued and finished ones, rates, slots, memory,
/// tokens and failures, by tenant and plugin. Enter opens the conversation of a rollout.
///
/// If standard output is no terminal, one snapshot is printed as text. A key sees what it sees on the pages below
/// /ui: a tenant's key the tenant's rollouts, an operator's key all tenants.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quits, the arrows select and scroll, Enter opens a conversation, a failure's latest rollout or a\n\
    tenant, Tab shows another list, Esc goes back.\n\nExamples:\n  \
    rollout-host top http://127.0.0.1:9000\n  \
    rollout-host top https://rollouts.example --server-key-env KEY --tenant lab\n  \
    rollout-host top http://127.0.0.1:9000 | cat"
)]
pub(super) struct Top {
    /// URL of the server, such as http://127.0.0.1:9000.
    #[arg(value_name = "URL", env = "ROLLOUT_HOST_URL", hide_env_values = true)]
    url: String,
    /// Environment variable with a key of the server. [default: ROLLOUT_HOST_KEY, if it is set]
    #[arg(long, value_name = "VAR")]
    server_key_env: Option<String>,
    /// Tenant to show, for an operator's key. [default: all tenants]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Seconds between two updates.
    #[arg(long, value_name = "SECS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    let secs: f64 = text.parse().map_err(|_| "it must be a number of seconds".to_owned())?;
    if (0.1..=3600.0).contains(&secs) { Ok(secs) } else { Err("it must be 0.1 to 3600 seconds".to_owned()) }
}

impl Top {
    pub(crate) fn run(self) -> Result<Exit> {
        let client = PageClient::new(&self.url, self.key()?.as_ref())?;
        setup::runtime()?.block_on(self.show(client))?;
        Ok(Exit::Done)
    }

    fn key(&self) -> Result<Option<Secret>> {
        match &self.server_key_env {
            Some(variable) => setup::key_from_env("--server-key-env", Some(variable)),
            None => Ok(std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty()).map(Secret::new)),
        }
    }

    async fn show(&self, client: PageClient) -> Result<()> {
        let wanted = Wanted::Host { tenant: self.tenant.clone() };
        let Received::Host(host) = client.get(&wanted).await? else { bail!("the server sent other data") };
        if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
            out!("{}", plain::snapshot(&host, &self.url, self.tenant.as_deref()));
            return Ok(());
        }
        self.watch(client, *host).await
    }

    /// Shows the view until a key or a signal ends it.
    async fn watch(&self, client: PageClient, host: HostData) -> Result<()> {
        let mut stop = StopSignal::new()?;
        let mut resized = signal(SignalKind::window_change()).context("cannot watch the terminal's size")?;
        let mut view = View::new(self.url.clone(), self.tenant.clone(), host);
        let (request, requested) = watch::channel(view.wanted());
        let (sender, mut received) = mpsc::channel(1);
        let interval = Duration::from_secs_f64(self.interval);
        tokio::spawn(request_each(Arc::new(client), requested, sender, interval));
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let palette = Palette::new(has_colours);
        let mut screen = Screen::enter()?;
        let mut keys = screen::keys();
        while !view.is_over {
            let drawn = screen.terminal.draw(|frame| draw::draw(frame, &mut view, palette));
            drawn.context("the terminal is gone")?;
            tokio::select! {
                key = keys.recv() => match key {
                    Some(key) => view.press(key),
                    None => view.is_over = true,
                },
                data = received.recv() => {
                    let (wanted, data) = data.context("the task that requests data has failed")?;
                    view.receive(&wanted, data);
                }
                _ = resized.recv() => {}
                () = stop.next() => view.is_over = true,
            }
            let wanted = view.wanted();
            request.send_if_modified(|before| {
                let is_new = *before != wanted;
                *before = wanted;
                is_new
            });
        }
        Ok(())
    }
}

/// Requests the wanted data in each interval, and at once when other data is wanted.
async fn request_each(
    client: Arc<PageClient>,
    mut wanted: watch::Receiver<Option<Wanted>>,
    received: mpsc::Sender<(Wanted, Result<Received>)>,
    interval: Duration,
) {
    loop {
        let now = wanted.borrow_and_update().clone();
        if let Some(now) = now {
            let data = tokio::select! {
                data = client.get(&now) => data,
                changed = wanted.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            if received.send((now, data)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

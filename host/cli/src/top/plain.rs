//! One snapshot as text, for standard output that is no terminal.

use std::fmt::Write;

use rollout_page::{EndedData, HostData, LiveData, reward};
use rollout_wire::text::printable;

use super::draw::{digits, failure_cells, rate, tenant_cells, time};
use crate::admin::table::Table;

/// Returns the data of a host as text.
pub(super) fn snapshot(host: &HostData, url: &str, tenant: Option<&str>) -> String {
    let mut text = String::new();
    let tenant = tenant.map(|tenant| format!(", tenant {tenant}")).unwrap_or_default();
    let stopping = if host.is_accepting { "" } else { ", shutting down" };
    // Writing to a text does not fail.
    let _ = writeln!(text, "{} at {url}{tenant}{stopping}", printable(&host.name));
    for gauge in host.gauges.iter().chain(&host.quotas) {
        let amounts = format!("{} of {}", gauge.used, gauge.max).replace('\u{2009}', " ");
        let _ = writeln!(text, "{}: {}", printable(&gauge.name), printable(&amounts));
    }
    let rates = host.rates;
    let _ = writeln!(
        text,
        "rates: {} rollouts and {} tokens a minute, {:.2} cores of guests",
        rate(rates.ended_per_minute),
        rate(rates.tokens_per_minute),
        rates.guest_cores
    );
    if host.is_overview {
        text.push('\n');
        text.push_str(&tenants(host));
        return text;
    }
    let counts = &host.counts;
    let mean = counts.mean_reward.map(|mean| format!(", mean {}", reward(mean))).unwrap_or_default();
    let (scored, unscored) = (digits(counts.scored), digits(counts.unscored));
    let tokens = digits(counts.tokens);
    let _ = writeln!(text, "ended: {scored} with a reward{mean}, {unscored} without, {tokens} tokens");
    let queued = digits(host.queued.count as u64);
    let _ = writeln!(text, "queued: {queued}");
    for part in [plugins(host), failures(host), running(host), ended(host)].into_iter().flatten() {
        text.push('\n');
        text.push_str(&part);
    }
    text
}

fn tenants(host: &HostData) -> String {
    let mut table = Table::new(["tenant", "running", "queued", "ended", "failed", "tokens"]);
    for tenant in &host.tenants {
        table.row(tenant_cells(tenant));
    }
    table.text("no tenant is open")
}

fn plugins(host: &HostData) -> Option<String> {
    let mut table =
        Table::new(["plugin", "version", "running", "slots", "queued", "ended", "failed", "tokens"]);
    for plugin in &host.plugins {
        table.row([
            plugin.name.clone(),
            plugin.version.clone(),
            plugin.running.to_string(),
            plugin.running_max.to_string(),
            plugin.queued.to_string(),
            digits(plugin.ended),
            digits(plugin.unscored),
            digits(plugin.tokens),
        ]);
    }
    (!host.plugins.is_empty()).then(|| table.text(""))
}

fn failures(host: &HostData) -> Option<String> {
    let mut table = Table::new(["failure", "stage", "at fault", "rollouts", "latest"]);
    for group in &host.failures {
        table.row(failure_cells(group));
    }
    (!host.failures.is_empty()).then(|| table.text(""))
}

fn running(host: &HostData) -> Option<String> {
    let mut table = Table::new(["running", "plugin", "phase", "time", "calls", "tokens"]);
    for LiveData { shown_id, plugin, phase, secs, calls, tokens, .. } in &host.running.items {
        let plugin = plugin.clone().unwrap_or_default();
        table.row([shown_id.clone(), plugin, phase.clone(), time(*secs), digits(*calls), digits(*tokens)]);
    }
    let more = host.running.count.saturating_sub(host.running.items.len());
    let more = if more > 0 { format!("{more} more\n") } else { String::new() };
    (!host.running.items.is_empty()).then(|| table.text("") + &more)
}

fn ended(host: &HostData) -> Option<String> {
    let mut table = Table::new(["finished", "plugin", "reward", "failure", "time", "calls", "tokens"]);
    for EndedData { shown_id, plugin, reward: value, failure, secs, calls, tokens, .. } in &host.ended.items {
        table.row([
            shown_id.clone(),
            plugin.clone().unwrap_or_default(),
            value.map(reward).unwrap_or_default(),
            failure.as_ref().map(|failure| failure.kind.clone()).unwrap_or_default(),
            time(*secs),
            digits(*calls),
            digits(*tokens),
        ]);
    }
    let more = host.ended.count.saturating_sub(host.ended.items.len());
    let more = if more > 0 { format!("{more} more\n") } else { String::new() };
    (!host.ended.items.is_empty()).then(|| table.text("") + &more)
}

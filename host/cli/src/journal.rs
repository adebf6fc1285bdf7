//! Journals on disk, for the commands that keep rollouts and those that read them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::setup;
use rollout_assembly::config::Config;
use rollout_rollout::seal::Seal;
use rollout_rollout::{Host, Journal, JournalSettings, Unfinished};

/// Opens a journal, and gives what is to be gone on with.
pub(super) fn open(settings: JournalSettings, config: &Config) -> Result<(Arc<Journal>, Unfinished)> {
    let dir = settings.path.clone();
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make the journal {}", dir.display()))?;
    let seal = match setup::key_from_env("journal.key-env", config.journal.key_env())? {
        Some(key) => Seal::of_secret(&key),
        None => {
            let path = dir.join("key");
            Seal::of_file(&path)
                .with_context(|| format!("cannot use the journal's key {}", path.display()))?
        }
    };
    Ok(Journal::open(settings, seal, config.osmosis.result_ttl)?)
}

/// Keeps in a journal what its rollouts run, so that they can be made again.
pub(super) fn keep_components(
    journal: &Path,
    host: &Host,
    plugin: &Path,
    grader: Option<&Path>,
) -> Result<()> {
    let id = host.deployment().id();
    keep_component(journal, &id.workflow, plugin)?;
    match (&id.grader, grader) {
        (Some(digest), Some(grader)) => keep_component(journal, digest, grader),
        _ => Ok(()),
    }
}

/// Finds the component of this digest that a journal keeps. That of a tenant, CATALOG/tenants/TENANT/journal, has its
/// components in the catalog.
pub(super) fn kept_component(journal: &Path, digest: &str) -> PathBuf {
    let name = format!("{digest}.wasm");
    let own = journal.join(COMPONENTS).join(&name);
    if own.exists() {
        return own;
    }
    let of_catalog = std::fs::canonicalize(journal).ok().and_then(|journal| {
        let tenants = journal.parent()?.parent().filter(|tenants| tenants.ends_with("tenants"))?;
        Some(tenants.parent()?.join(COMPONENTS).join(digest.get(..2)?).join(name))
    });
    of_catalog.filter(|component| component.exists()).unwrap_or(own)
}

/// The folder of components in a journal, and in a catalog, which has one more below it for the digest's first two digits.
const COMPONENTS: &str = "components";

/// Keeps a component in a journal, where it is not there already.
fn keep_component(journal: &Path, digest: &str, from: &Path) -> Result<()> {
    let folder = journal.join(COMPONENTS);
    let to = folder.join(format!("{digest}.wasm"));
    if to.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Whole or not at all, whatever happens meanwhile.
    let part = to.with_extension("part");
    std::fs::copy(from, &part).with_context(|| format!("cannot keep {} in the journal", from.display()))?;
    std::fs::rename(&part, &to).with_context(|| format!("cannot keep {} in the journal", from.display()))
}

/// The journal that a command reads: this, or else that of a `serve` with the same configuration.
pub(super) fn to_read(given: Option<&Path>, config: &Config) -> Result<PathBuf> {
    let root = config.artifact_root.clone().unwrap_or_else(|| PathBuf::from("rollouts"));
    let dir = given.map(Path::to_owned).or_else(|| config.journal.dir(&root));
    let dir = dir.context("there is no journal; --journal says where one is")?;
    if !dir.is_dir() {
        bail!("there is no journal in {}; --journal says where one is", dir.display());
    }
    Ok(of_results(&dir))
}

/// The directory of the journal that is meant: this, or that of the evaluation whose results are here.
pub(super) fn of_results(dir: &Path) -> PathBuf {
    let within = dir.join(OF_EVALUATION);
    if dir.join("manifest.json").is_file() && within.is_dir() { within } else { dir.to_owned() }
}

/// Whether a directory is a journal.
pub(super) fn is_one(dir: &Path) -> Result<bool> {
    let unreadable = || format!("cannot read {}", dir.display());
    for entry in std::fs::read_dir(dir).with_context(unreadable)? {
        if Path::new(&entry.with_context(unreadable)?.file_name())
            .extension()
            .is_some_and(|ending| ending == "seg")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where an evaluation keeps its rollouts, below its results.
pub(super) const OF_EVALUATION: &str = "journal";

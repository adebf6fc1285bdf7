//! Journals on disk, for the commands that write and read them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::setup;
use rollout_assembly::config::Config;
use rollout_catalog::JOURNALS_BEFORE_SHARING;
use rollout_rollout::seal::Seal;
use rollout_rollout::{Host, Journal, JournalSettings, Unfinished};

/// Opens a journal and returns it with its unfinished rollouts.
pub(super) fn open(settings: JournalSettings, config: &Config) -> Result<(Arc<Journal>, Unfinished)> {
    let dir = settings.path.clone();
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create the journal {}", dir.display()))?;
    let seal = match setup::key_from_env("journal.key-env", config.journal.key_env())? {
        Some(key) => Seal::from_secret(&key),
        None => {
            let path = dir.join("key");
            Seal::from_file(&path)
                .with_context(|| format!("cannot use the journal's key {}", path.display()))?
        }
    };
    Ok(Journal::open(settings, seal, config.osmosis.result_ttl)?)
}

/// Stores the components of a host in a journal, so that its rollouts can be replayed.
pub(super) fn store_components(
    journal: &Path,
    host: &Host,
    plugin: &Path,
    grader: Option<&Path>,
) -> Result<()> {
    let id = host.deployment().id();
    store_component(journal, &id.workflow, plugin)?;
    match (&id.grader, grader) {
        (Some(digest), Some(grader)) => store_component(journal, digest, grader),
        _ => Ok(()),
    }
}

/// Returns the path of the component with this digest in a journal.
///
/// The components of a tenant's journal, CATALOG/tenants/TENANT/journal, are in the catalog, as are those of a journal from before
/// the catalog was shared, CATALOG/journals-before-sharing/TENANT.
pub(super) fn stored_component(journal: &Path, digest: &str) -> PathBuf {
    let name = format!("{digest}.wasm");
    let own = journal.join(COMPONENTS).join(&name);
    if own.exists() {
        return own;
    }
    let of_catalog = std::fs::canonicalize(journal).ok().and_then(|journal| {
        let folder = journal.parent()?;
        let before = (folder.file_name()? == JOURNALS_BEFORE_SHARING).then_some(folder);
        let tenants = before.or_else(|| folder.parent().filter(|tenants| tenants.ends_with("tenants")))?;
        Some(tenants.parent()?.join(COMPONENTS).join(digest.get(..2)?).join(name))
    });
    of_catalog.filter(|component| component.exists()).unwrap_or(own)
}

/// Folder of components in a journal and in a catalog. A catalog's has a subfolder for the digest's first two
/// digits.
const COMPONENTS: &str = "components";

/// Stores a component in a journal unless it is stored already.
fn store_component(journal: &Path, digest: &str, from: &Path) -> Result<()> {
    let folder = journal.join(COMPONENTS);
    let to = folder.join(format!("{digest}.wasm"));
    if to.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // The rename makes the component appear completely or not at all.
    let part = to.with_extension("part");
    std::fs::copy(from, &part).with_context(|| format!("cannot store {} in the journal", from.display()))?;
    std::fs::rename(&part, &to).with_context(|| format!("cannot store {} in the journal", from.display()))
}

/// Returns the directory of the journal to read: the given one, or that of a `serve` with the same
/// configuration.
pub(super) fn find(given: Option<&Path>, config: &Config) -> Result<PathBuf> {
    let root = config.artifact_root.clone().unwrap_or_else(|| PathBuf::from("rollouts"));
    let dir = given.map(Path::to_owned).or_else(|| config.journal.dir(&root));
    let dir = dir.context("no journal is configured; give its directory with --journal")?;
    if !dir.is_dir() {
        bail!("there is no journal in {}; give its directory with --journal", dir.display());
    }
    Ok(resolve(&dir))
}

/// Returns the directory of a journal, given its directory or that of an evaluation's results.
pub(super) fn resolve(dir: &Path) -> PathBuf {
    let within = dir.join(EVALUATION_DIR);
    if dir.join("manifest.json").is_file() && within.is_dir() { within } else { dir.to_owned() }
}

/// Returns whether a directory is a journal.
pub(super) fn is_journal(dir: &Path) -> Result<bool> {
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

/// Folder of the journal in an evaluation's results.
pub(super) const EVALUATION_DIR: &str = "journal";

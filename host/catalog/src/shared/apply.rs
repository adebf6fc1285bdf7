//! Applies the changes of other processes to a copy.

use std::collections::BTreeSet;

use rusqlite::types::Value as Sql;
use rusqlite::{OptionalExtension, Transaction, params_from_iter};

use super::Table;
use super::change::RowChange;
use super::value::from_json;
use crate::model::TenantId;

/// Effects of applied changes outside the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Tenants with a changed row.
    pub tenants: BTreeSet<TenantId>,
    /// Whether valid keys may have changed.
    pub has_keys: bool,
    /// Digests of components that a tenant no longer has.
    pub disowned: Vec<String>,
}

/// Reason why a change cannot be applied.
#[derive(Debug)]
pub(crate) enum NotApplied {
    Sql(rusqlite::Error),
    /// Another version of the program wrote the change.
    Unknown(String),
}

impl From<rusqlite::Error> for NotApplied {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Applied {
    pub(crate) fn add(&mut self, more: Self) {
        self.tenants.extend(more.tenants);
        self.has_keys |= more.has_keys;
        self.disowned.extend(more.disowned);
    }
}

/// Applies the rows of one change within a transaction.
pub(crate) fn apply(transaction: &Transaction<'_>, rows: &[RowChange]) -> Result<Applied, NotApplied> {
    // The rows refer to each other in both directions.
    transaction.pragma_update(None, "defer_foreign_keys", true)?;
    let mut applied = Applied::default();
    // A new row may have the unique name of a deleted one.
    let (deleted, set): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.row.is_none());
    for row in deleted.into_iter().chain(set) {
        let unknown = |what: &str| NotApplied::Unknown(format!("{what} of the table '{}'", row.table));
        let table = Table::named(&row.table).ok_or_else(|| unknown("a row"))?;
        let key: Option<Vec<Sql>> = row.key.iter().map(from_json).collect();
        let key = key.filter(|key| key.len() == table.key.len()).ok_or_else(|| unknown("a key"))?;
        note(transaction, table, &key, row, &mut applied)?;
        if row.row.is_none() {
            let delete = format!("DELETE FROM main.{} WHERE {}", table.name, table.condition());
            transaction.execute(&delete, params_from_iter(key))?;
        } else {
            upsert(transaction, table, row).ok_or_else(|| unknown("a column"))??;
        }
    }
    Ok(applied)
}

/// Sets a row. Returns `None` if it has a column or a value that this version does not know.
fn upsert(transaction: &Transaction<'_>, table: &Table, row: &RowChange) -> Option<rusqlite::Result<()>> {
    let values = row.row.as_ref()?;
    let columns: Vec<&str> = values.keys().map(String::as_str).collect();
    let is_name = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if !columns.iter().all(is_name) || !table.key.iter().all(|key| columns.contains(key)) {
        return None;
    }
    let sql: Vec<Sql> = values.values().map(from_json).collect::<Option<_>>()?;
    let places = (1..=sql.len()).map(|at| format!("?{at}")).collect::<Vec<_>>().join(", ");
    let others = columns.iter().filter(|column| !table.key.contains(column));
    let sets = others.map(|column| format!("{column} = excluded.{column}")).collect::<Vec<_>>().join(", ");
    let upsert = format!(
        "INSERT INTO main.{} ({}) VALUES ({places}) ON CONFLICT ({}) DO UPDATE SET {sets}",
        table.name,
        columns.join(", "),
        table.key.join(", ")
    );
    Some(transaction.execute(&upsert, params_from_iter(sql)).map(drop))
}

/// Records the effects of changing a row, before it is changed.
fn note(
    transaction: &Transaction<'_>,
    table: &Table,
    key: &[Sql],
    row: &RowChange,
    applied: &mut Applied,
) -> rusqlite::Result<()> {
    if let Some(column) = table.tenant {
        let select = format!("SELECT {column} FROM main.{} WHERE {}", table.name, table.condition());
        let before =
            transaction.query_row(&select, params_from_iter(key), |row| row.get::<_, Option<i64>>(0));
        let now = row.row.as_ref().and_then(|values| values.get(column)?.as_i64());
        let both = [before.optional()?.flatten(), now];
        applied.tenants.extend(both.into_iter().flatten().map(TenantId));
    }
    applied.has_keys |= matches!(table.name, "tenants" | "keys");
    if let ("components", None, [_, Sql::Text(digest)]) = (table.name, &row.row, key) {
        applied.disowned.push(digest.clone());
    }
    Ok(())
}

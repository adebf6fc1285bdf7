//! Records the rows that a transaction changes, by triggers that exist for one connection.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params_from_iter};
use serde_json::Value;

use super::change::RowChange;
use super::value::{from_json, invalid, to_json};
use super::{TABLES, Table};

/// Creates the triggers. They fire for rows that foreign keys delete or change, too.
pub(crate) fn install(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .execute_batch("CREATE TEMP TABLE changed_rows (name TEXT NOT NULL, key TEXT NOT NULL) STRICT")?;
    for Table { name, key, .. } in TABLES {
        for (event, row) in [("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")] {
            let key = key.iter().map(|column| format!("{row}.{column}")).collect::<Vec<_>>().join(", ");
            connection.execute_batch(&format!(
                "CREATE TEMP TRIGGER {name}_{event} AFTER {event} ON main.{name} BEGIN
                     INSERT INTO changed_rows VALUES ('{name}', json_array({key}));
                 END"
            ))?;
        }
    }
    Ok(())
}

/// Clears the record of rows that earlier transactions have changed.
pub(crate) fn clear(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM temp.changed_rows", []).map(drop)
}

/// Returns the rows that the transaction has changed, as they are now.
pub(crate) fn rows(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<RowChange>> {
    let select = "SELECT name, key FROM temp.changed_rows GROUP BY name, key ORDER BY min(rowid)";
    let mut statement = transaction.prepare(select)?;
    let keys = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    let keys = keys.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut changes = Vec::with_capacity(keys.len());
    for (name, key) in keys {
        let key: Vec<Value> = serde_json::from_str(&key).map_err(|error| invalid(1, error))?;
        // The triggers write only names of shared tables.
        let Some(table) = Table::named(&name) else { continue };
        let select = format!("SELECT * FROM main.{name} WHERE {}", table.condition());
        let values: Vec<_> = key.iter().filter_map(from_json).collect();
        let row = transaction.query_row(&select, params_from_iter(values), |row| values_of(table, row));
        changes.push(RowChange { table: name, key, row: row.optional()? });
    }
    Ok(changes)
}

/// Returns the values of a row by column, without the columns that are not shared.
pub(super) fn values_of(table: &Table, row: &Row<'_>) -> rusqlite::Result<BTreeMap<String, Value>> {
    let mut values = BTreeMap::new();
    for (at, column) in row.as_ref().column_names().into_iter().enumerate() {
        if !table.local.contains(&column) {
            let unknown = || {
                let error = std::io::Error::other("a value of a kind that no table has");
                invalid(at, error)
            };
            values.insert(column.to_owned(), to_json(row.get_ref(at)?).ok_or_else(unknown)?);
        }
    }
    Ok(values)
}

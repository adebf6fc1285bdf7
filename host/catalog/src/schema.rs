//! Database tables, version by version. A released version never changes; a later version migrates it.

use rusqlite_migration::{M, Migrations};

/// Returns the migrations from every earlier version to the current one.
pub(crate) fn migrations() -> Migrations<'static> {
    Migrations::new(vec![
        M::up(VERSION_1),
        M::up(VERSION_2),
        M::up(VERSION_3),
        M::up(VERSION_4),
        M::up(VERSION_5),
    ])
}

/// Times are seconds since 1970, days are counted from 1970, digests are 64 hex digits.
pub(crate) const VERSION_1: &str = "
CREATE TABLE tenants (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    quotas TEXT NOT NULL,
    network TEXT NOT NULL,
    default_plugin INTEGER REFERENCES plugins(id) ON DELETE SET NULL,
    created_at INTEGER NOT NULL,
    deleting INTEGER NOT NULL DEFAULT 0
) STRICT;
-- The name of one that is being deleted is free.
CREATE UNIQUE INDEX tenants_by_name ON tenants(name) WHERE NOT deleting;

CREATE TABLE keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER REFERENCES tenants(id) ON DELETE CASCADE,
    rights TEXT NOT NULL CHECK (rights IN ('operator', 'author', 'caller', 'viewer')),
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER,
    CHECK ((rights = 'operator') = (tenant IS NULL))
) STRICT;
CREATE INDEX keys_by_tenant ON keys(tenant);

CREATE TABLE components (
    tenant INTEGER NOT NULL REFERENCES tenants(id) ON DELETE CASCADE,
    digest TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    uploaded_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX components_by_digest ON components(digest);

CREATE TABLE plugins (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER NOT NULL REFERENCES tenants(id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    quotas TEXT NOT NULL,
    active INTEGER,
    version_next INTEGER NOT NULL DEFAULT 1,
    created_at INTEGER NOT NULL,
    UNIQUE (tenant, name),
    FOREIGN KEY (id, active) REFERENCES deployments(plugin, version)
) STRICT;

CREATE TABLE deployments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    plugin INTEGER NOT NULL REFERENCES plugins(id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    component TEXT NOT NULL,
    grader TEXT,
    config TEXT,
    passed INTEGER NOT NULL,
    report TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    UNIQUE (plugin, version),
    FOREIGN KEY (tenant, component) REFERENCES components(tenant, digest),
    FOREIGN KEY (tenant, grader) REFERENCES components(tenant, digest)
) STRICT;
CREATE INDEX deployments_by_component ON deployments(tenant, component);
CREATE INDEX deployments_by_grader ON deployments(tenant, grader);

CREATE TABLE activations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    plugin INTEGER NOT NULL REFERENCES plugins(id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    before INTEGER,
    at INTEGER NOT NULL,
    by TEXT NOT NULL
) STRICT;
CREATE INDEX activations_by_plugin ON activations(plugin, id);

CREATE TABLE secrets (
    tenant INTEGER NOT NULL REFERENCES tenants(id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    sealed BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
    tenant INTEGER NOT NULL REFERENCES tenants(id) ON DELETE CASCADE,
    day INTEGER NOT NULL,
    model_tokens INTEGER NOT NULL,
    guest_cpu_nanos INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) STRICT, WITHOUT ROWID;
";

/// Signatures: the keys that a tenant's components have to be signed with, and the origin of each component, as JSON.
const VERSION_2: &str = "
ALTER TABLE tenants ADD COLUMN trusted_keys TEXT NOT NULL DEFAULT '[]';
ALTER TABLE deployments ADD COLUMN component_origin TEXT;
ALTER TABLE deployments ADD COLUMN grader_origin TEXT;
";

/// A shared catalog: the last change of the log that this copy has applied.
const VERSION_3: &str = "
CREATE TABLE shared (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    sequence INTEGER NOT NULL,
    digest TEXT NOT NULL
) STRICT;
";

/// The digest of the first change of the shared log, whose beginning may be gone.
const VERSION_4: &str = "
ALTER TABLE shared ADD COLUMN origin TEXT;
";

/// The name of this database's count of usage, which other workers distinguish it by.
const VERSION_5: &str = "
CREATE TABLE usage_count (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    name TEXT NOT NULL
) STRICT;
INSERT INTO usage_count (id, name) VALUES (1, lower(hex(randomblob(16))));
CREATE INDEX usage_by_day ON usage(day);
";

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

PRAGMA user_version = 1;
INSERT INTO tenants VALUES (1, 'team-a', '{"running":8,"weight":2}', '{"allow":["10.0.0.0/8"],"public":"open"}', NULL, 1795132800, 0);
INSERT INTO tenants VALUES (2, 'team-b', '{}', '{"allow":[],"public":"listed"}', NULL, 1795132800, 1);
INSERT INTO keys VALUES (1, 1, 'author', x'9f7aa196f0c110bdb2cf6768151b530f4ef730e250384b8e485c24a747a85a64', 'rh_AAAAAAAA', 'laptop', 1795132800, NULL, NULL, 1795132900);
INSERT INTO components VALUES (1, 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad', 3, 1795132800);
INSERT INTO plugins VALUES (1, 1, 'calc', '{}', NULL, 2, 1795132800);
INSERT INTO deployments VALUES (1, 1, 1, 1, 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad', NULL, '[limits]', 1, '{}', 1795132800, 'rh_AAAAAAAA');
UPDATE plugins SET active = 1;
UPDATE tenants SET default_plugin = 1 WHERE id = 1;
INSERT INTO activations VALUES (1, 1, 1, NULL, 1795132800, 'rh_AAAAAAAA');
INSERT INTO secrets VALUES (1, 'judge', x'0102');
INSERT INTO usage VALUES (1, 20777, 500, 1000000);

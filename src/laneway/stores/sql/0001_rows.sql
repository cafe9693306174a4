-- What a store keeps, one table for each kind of row, and `meta`, the numbers of the store itself.
--
-- A commit costs what it writes, and it writes whole pages. So there are few indexes, and most of them grow at their
-- end: they begin with what all rows share and go on with a number or an id that counts up. Two lie scattered, one page
-- for each session of a group: messages_by_session and the events themselves.

CREATE TABLE meta (
    name TEXT PRIMARY KEY NOT NULL,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `epoch`: how often the store was opened. `seq`: no row has a higher number. `schema`: the last migration.
INSERT INTO meta (name, value) VALUES ('epoch', 0), ('seq', 0), ('schema', 0);

CREATE TABLE messages (
    id TEXT PRIMARY KEY NOT NULL,
    tenant TEXT NOT NULL,
    workspace TEXT NOT NULL,
    session TEXT NOT NULL,
    seq INTEGER NOT NULL,
    place INTEGER NOT NULL,
    live INTEGER NOT NULL CHECK (live IN (0, 1)),
    state TEXT NOT NULL,
    outcome TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    platform_id TEXT,
    route TEXT NOT NULL,
    arrived_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

-- What is live in a workspace or in a session, however much has ended; and the history of a session in two walks.
CREATE INDEX messages_by_session ON messages (workspace, live, tenant, session, seq);
CREATE INDEX messages_of_workspace ON messages (tenant, workspace, seq);
-- Has it come before? Platform ids mostly count up, so they come first.
CREATE INDEX messages_by_platform_id ON messages (platform_id, tenant, workspace, session)
WHERE platform_id IS NOT NULL;

CREATE TABLE states (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    workspace TEXT NOT NULL,
    session TEXT NOT NULL,
    seq INTEGER NOT NULL,
    live INTEGER NOT NULL CHECK (live IN (0, 1)),
    state TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT;

-- The only one: a job is written three times, and each index would be written with it.
CREATE INDEX states_by_session ON states (workspace, live, tenant, session, kind, seq);

-- Events are small and are read by session: the table is its own index.
CREATE TABLE events (
    tenant TEXT NOT NULL,
    workspace TEXT NOT NULL,
    session TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    type TEXT NOT NULL,
    message_id TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, workspace, session, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX events_of_message ON events (message_id) WHERE message_id != '';
CREATE INDEX events_of_turn ON events (turn_id) WHERE turn_id != '';

-- Entries may be long texts: those belong into a table with row ids.
CREATE TABLE entries (
    tenant TEXT NOT NULL,
    workspace TEXT NOT NULL,
    session TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    conversation INTEGER NOT NULL,
    role TEXT NOT NULL,
    message_id TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    text TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, workspace, session, seq)
) STRICT;

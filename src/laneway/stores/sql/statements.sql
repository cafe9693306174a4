-- Every statement of the SQLite store. `-- name:` begins one, and the line after it says what it is for.

-- name: get_meta
-- A number of the store itself.
SELECT value FROM meta WHERE name = ?;

-- name: set_meta
-- Change a number of the store itself.
UPDATE meta SET value = :value WHERE name = :name;

-- name: put_message
-- A message as it is now; the values are the fields of MessageRow. An id that is another message's is refused, because
-- it would be of no session then, which the table does not take.
INSERT INTO messages (
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    session = CASE
        WHEN messages.seq = excluded.seq AND messages.session = excluded.session
            AND messages.workspace = excluded.workspace AND messages.tenant = excluded.tenant
            THEN excluded.session
    END,
    place = excluded.place, live = excluded.live, state = excluded.state, outcome = excluded.outcome,
    turn_id = excluded.turn_id, reason = excluded.reason, platform_id = excluded.platform_id, route = excluded.route,
    arrived_ms = excluded.arrived_ms, ended_ms = excluded.ended_ms, body = excluded.body;

-- name: put_state
-- A state row as it is now; the values are the fields of StateRow. An id that is another session's or another turn's is
-- refused, because it would be of no session then, which the table does not take.
-- A blob is known by its hash, so one that is there is the same, and is not written again, however often it comes.
INSERT INTO states (kind, id, tenant, workspace, session, seq, live, state, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET
    session = CASE
        WHEN states.session = excluded.session
            AND states.workspace = excluded.workspace AND states.tenant = excluded.tenant
            AND (excluded.kind != 'turn' OR states.seq = excluded.seq)
            THEN excluded.session
    END,
    seq = excluded.seq,
    live = excluded.live, state = excluded.state, body = excluded.body
WHERE excluded.kind != 'blob';

-- name: put_blob_uses
-- Which blobs a row names that is written; the values are the fields of StateRow. A body that is no JSON names none.
INSERT OR IGNORE INTO blob_uses (kind, id, blob)
SELECT :kind, :id, :tenant || ':' || named.value
FROM json_each(CASE WHEN json_valid(:body) THEN :body ELSE '{}' END, '$.b') AS named
WHERE typeof(named.value) = 'text';

-- name: put_event
-- An event, unless it is there already; only this conflict is passed over, a bad value is still an error.
INSERT INTO events (tenant, workspace, session, seq, at_ms, type, message_id, turn_id, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, workspace, session, seq) DO NOTHING;

-- name: put_entry
-- A line of a transcript; the values are the fields of EntryRow.
INSERT INTO entries (
    tenant, workspace, session, seq, at_ms, conversation, role, message_id, turn_id, text, body
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, workspace, session, seq) DO UPDATE SET
    at_ms = excluded.at_ms, conversation = excluded.conversation, role = excluded.role,
    message_id = excluded.message_id, turn_id = excluded.turn_id, text = excluded.text, body = excluded.body;

-- name: forget_state
-- A state row is no longer needed; the values are the fields of StateKey.
DELETE FROM states WHERE kind = ? AND id = ?;

-- name: find_message
-- The newest message of a session with a platform id on a route since then.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_by_platform_id
WHERE
    platform_id = :platform_id AND platform_id IS NOT NULL AND tenant = :tenant AND workspace = :workspace
    AND session = :session AND route = :route AND arrived_ms >= :since_ms
ORDER BY seq DESC
LIMIT 1;

-- name: live_messages_of_workspace
-- What a restart loads.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_by_session
WHERE workspace = :workspace AND live = 1
ORDER BY place, seq;

-- name: live_states_of_workspace
-- What a restart loads.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states INDEXED BY states_by_session
WHERE workspace = :workspace AND live = 1
ORDER BY seq;

-- name: live_messages_of_session
-- What a session that is woken loads.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_by_session
WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND live = 1
ORDER BY place, seq;

-- name: live_states_of_session
-- What a session that is woken loads.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states INDEXED BY states_by_session
WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND live = 1
ORDER BY seq;

-- name: message_by_id
-- One message.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages
WHERE id = :id;

-- name: messages_of_session
-- Two walks along one index, merged: the index has `live` before `seq`.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_by_session
WHERE
    tenant = :tenant AND workspace = :workspace AND session = :session AND live = 0 AND seq > :after_seq
    AND (:state = '' OR state = :state)
UNION ALL
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_by_session
WHERE
    tenant = :tenant AND workspace = :workspace AND session = :session AND live = 1 AND seq > :after_seq
    AND (:state = '' OR state = :state)
ORDER BY seq
LIMIT :limit;

-- name: messages_of_workspace
-- Messages of all sessions.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_of_workspace
WHERE tenant = :tenant AND workspace = :workspace AND seq > :after_seq AND (:state = '' OR state = :state)
ORDER BY seq
LIMIT :limit;

-- name: messages_of_session_newest
-- Messages of a session, newest first, of one state if it is given.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_by_session
WHERE
    workspace = :workspace AND live IN (0, 1) AND tenant = :tenant AND session = :session AND seq < :before_seq
    AND (:state = '' OR state = :state)
ORDER BY seq DESC
LIMIT :limit;

-- name: messages_of_workspace_newest
-- Messages of all sessions, newest first, of one state if it is given.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_of_workspace
WHERE tenant = :tenant AND workspace = :workspace AND seq < :before_seq AND (:state = '' OR state = :state)
ORDER BY seq DESC
LIMIT :limit;

-- name: dead_of_workspace
-- Dead messages of all sessions: they are few among many, and have an index of their own.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_dead
WHERE tenant = :tenant AND workspace = :workspace AND state = 'dead_lettered' AND seq > :after_seq
ORDER BY seq
LIMIT :limit;

-- name: dead_of_workspace_newest
-- The same, newest first.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages INDEXED BY messages_dead
WHERE tenant = :tenant AND workspace = :workspace AND state = 'dead_lettered' AND seq < :before_seq
ORDER BY seq DESC
LIMIT :limit;

-- name: state_by_key
-- One state row.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states
WHERE kind = :kind AND id = :id;

-- name: states_of_session
-- Two walks along one index, merged: the index has `live` before `kind` and `seq`.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states INDEXED BY states_by_session
WHERE
    tenant = :tenant AND workspace = :workspace AND session = :session AND live = 0 AND kind = :kind
    AND seq > :after_seq
UNION ALL
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states INDEXED BY states_by_session
WHERE
    tenant = :tenant AND workspace = :workspace AND session = :session AND live = 1 AND kind = :kind
    AND seq > :after_seq
ORDER BY seq
LIMIT :limit;

-- name: states_of_workspace
-- State rows of all sessions: the index is walked through, and only the rows that are wanted are read.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states
WHERE rowid IN (
    SELECT rowid FROM states INDEXED BY states_by_session
    WHERE
        workspace = :workspace AND live IN (0, 1) AND tenant = :tenant AND kind = :kind AND seq > :after_seq
    ORDER BY seq
    LIMIT :limit
)
ORDER BY seq;

-- name: states_of_session_newest
-- State rows of a session, newest first, of one state if it is given.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states INDEXED BY states_by_session
WHERE
    workspace = :workspace AND live IN (:least, 1) AND tenant = :tenant AND session = :session AND kind = :kind
    AND seq < :before_seq AND (:state = '' OR state = :state)
ORDER BY seq DESC
LIMIT :limit;

-- name: states_of_workspace_newest
-- State rows of all sessions, newest first, of one state if it is given.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states
WHERE rowid IN (
    SELECT rowid FROM states INDEXED BY states_by_session
    WHERE
        workspace = :workspace AND live IN (:least, 1) AND tenant = :tenant AND kind = :kind AND seq < :before_seq
        AND (:state = '' OR state = :state)
    ORDER BY seq DESC
    LIMIT :limit
)
ORDER BY seq DESC;

-- name: events_of_session
-- Everything that has happened in a session.
SELECT tenant, workspace, session, seq, at_ms, type, message_id, turn_id, body
FROM events
WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND seq > :after_seq
ORDER BY seq
LIMIT :limit;

-- name: events_newest
-- What has happened in a session, the last thing first.
SELECT tenant, workspace, session, seq, at_ms, type, message_id, turn_id, body
FROM events
WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND seq < :before_seq
ORDER BY seq DESC
LIMIT :limit;

-- name: events_of_message
-- What has happened to a message (in a turn, if one is given).
SELECT tenant, workspace, session, seq, at_ms, type, message_id, turn_id, body
FROM events INDEXED BY events_of_message
WHERE
    message_id = :message_id AND message_id != '' AND tenant = :tenant AND workspace = :workspace
    AND session = :session AND seq > :after_seq AND (:turn_id = '' OR turn_id = :turn_id)
ORDER BY seq
LIMIT :limit;

-- name: events_of_turn
-- What has happened in a turn.
SELECT tenant, workspace, session, seq, at_ms, type, message_id, turn_id, body
FROM events INDEXED BY events_of_turn
WHERE
    turn_id = :turn_id AND turn_id != '' AND tenant = :tenant AND workspace = :workspace
    AND session = :session AND seq > :after_seq
ORDER BY seq
LIMIT :limit;

-- name: events_between
-- Events of all sessions: from one session key to the next by seeking, and in each to the first number that is asked for.
WITH RECURSIVE keys (session) AS (
    SELECT ''
    UNION ALL
    SELECT (
        SELECT min(later.session) FROM events AS later
        WHERE later.tenant = :tenant AND later.workspace = :workspace AND later.session > keys.session
    )
    FROM keys
    WHERE keys.session IS NOT NULL
)
SELECT
    events.tenant, events.workspace, events.session, events.seq, events.at_ms, events.type, events.message_id,
    events.turn_id, events.body
FROM keys
CROSS JOIN events
WHERE
    keys.session > '' AND events.tenant = :tenant AND events.workspace = :workspace
    AND events.session = keys.session AND events.seq > :after_seq AND events.seq <= :until_seq
ORDER BY events.seq
LIMIT :limit;

-- name: last_events
-- When something last happened in each session: from one key to the next by seeking, and to the end of each.
WITH RECURSIVE keys (session) AS (
    SELECT ''
    UNION ALL
    SELECT (
        SELECT min(later.session) FROM events AS later
        WHERE later.tenant = :tenant AND later.workspace = :workspace AND later.session > keys.session
    )
    FROM keys
    WHERE keys.session IS NOT NULL
)
SELECT events.session, events.seq, events.at_ms
FROM keys
CROSS JOIN events
WHERE
    keys.session > '' AND events.tenant = :tenant AND events.workspace = :workspace
    AND events.session = keys.session AND events.seq = (
        SELECT max(last.seq) FROM events AS last
        WHERE last.tenant = :tenant AND last.workspace = :workspace AND last.session = keys.session
    )
ORDER BY events.seq;

-- name: entries_oldest
-- A transcript from its beginning.
SELECT tenant, workspace, session, seq, at_ms, conversation, role, message_id, turn_id, text, body
FROM entries
WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND seq > :after_seq
    AND (:conversation IS NULL OR conversation = :conversation)
ORDER BY seq
LIMIT :limit;

-- name: entries_newest
-- The end of a transcript; the caller turns it round.
SELECT tenant, workspace, session, seq, at_ms, conversation, role, message_id, turn_id, text, body
FROM entries
WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND seq > :after_seq
    AND (:conversation IS NULL OR conversation = :conversation)
ORDER BY seq DESC
LIMIT :limit;

-- name: sessions
-- From one session key to the next by seeking: a session with a million messages costs one step.
WITH RECURSIVE keys (session) AS (
    SELECT :after
    UNION ALL
    SELECT (
        SELECT min(later.session)
        FROM (
            SELECT min(ended.session) AS session FROM messages AS ended INDEXED BY messages_by_session
            WHERE
                ended.workspace = :workspace AND ended.live = 0 AND ended.tenant = :tenant
                AND ended.session > keys.session
            UNION ALL
            SELECT min(waiting.session) FROM messages AS waiting INDEXED BY messages_by_session
            WHERE
                waiting.workspace = :workspace AND waiting.live = 1 AND waiting.tenant = :tenant
                AND waiting.session > keys.session
        ) AS later
    )
    FROM keys
    WHERE keys.session IS NOT NULL
)
SELECT session FROM keys WHERE session IS NOT NULL LIMIT :limit OFFSET 1;

-- name: workspaces
-- The workspaces in which a tenant has messages, from one to the next by seeking.
WITH RECURSIVE keys (workspace) AS (
    SELECT ''
    UNION ALL
    SELECT (
        SELECT min(messages.workspace) FROM messages INDEXED BY messages_of_workspace
        WHERE messages.tenant = :tenant AND messages.workspace > keys.workspace
    )
    FROM keys
    WHERE keys.workspace IS NOT NULL
)
SELECT workspace FROM keys WHERE workspace IS NOT NULL AND workspace != '';

-- name: all_workspaces
-- The workspaces that have messages, from one to the next by seeking.
WITH RECURSIVE keys (workspace) AS (
    SELECT ''
    UNION ALL
    SELECT (
        SELECT min(messages.workspace) FROM messages INDEXED BY messages_by_session
        WHERE messages.workspace > keys.workspace
    )
    FROM keys
    WHERE keys.workspace IS NOT NULL
)
SELECT workspace FROM keys WHERE workspace IS NOT NULL AND workspace != '';

-- name: tenants
-- The tenants that have messages in a workspace, from one to the next by seeking.
WITH RECURSIVE keys (tenant) AS (
    SELECT ''
    UNION ALL
    SELECT (
        SELECT min(later.tenant)
        FROM (
            SELECT min(ended.tenant) AS tenant FROM messages AS ended INDEXED BY messages_by_session
            WHERE ended.workspace = :workspace AND ended.live = 0 AND ended.tenant > keys.tenant
            UNION ALL
            SELECT min(waiting.tenant) FROM messages AS waiting INDEXED BY messages_by_session
            WHERE waiting.workspace = :workspace AND waiting.live = 1 AND waiting.tenant > keys.tenant
        ) AS later
    )
    FROM keys
    WHERE keys.tenant IS NOT NULL
)
SELECT tenant FROM keys WHERE tenant IS NOT NULL AND tenant != '';

-- name: unknown_calls
-- Calls of which nobody knows how far they came, newest first: they are live, and what is live is never much.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states
WHERE rowid IN (
    SELECT rowid FROM states INDEXED BY states_by_session
    WHERE workspace = :workspace AND live = 1 AND tenant = :tenant AND kind = 'intent'
)
AND state = 'unknown'
ORDER BY seq DESC
LIMIT :limit;

-- name: dead_messages
-- Messages that are dead letters still, newest first, among the newest that ever were.
SELECT
    id, tenant, workspace, session, seq, place, live, state, outcome, turn_id, reason, platform_id, route,
    arrived_ms, ended_ms, body
FROM messages
WHERE
    rowid IN (
        SELECT rowid FROM messages INDEXED BY messages_dead
        WHERE tenant = :tenant AND workspace = :workspace AND state = 'dead_lettered'
        ORDER BY seq DESC
        LIMIT :scan
    )
    AND NOT EXISTS (
        SELECT 1 FROM states AS mark
        WHERE mark.kind = 'dead_letter' AND mark.id = messages.id AND mark.state IN ('retried', 'purged')
    )
ORDER BY seq DESC
LIMIT :limit;

-- name: broken_turns
-- Turns that did not come to their end and after which nothing was tried in their session, newest first.
SELECT kind, id, tenant, workspace, session, seq, live, state, body
FROM states AS turn
WHERE
    turn.rowid IN (
        SELECT rowid FROM states INDEXED BY states_broken
        WHERE
            tenant = :tenant AND workspace = :workspace AND kind = 'turn'
            AND state IN ('failed', 'interrupted', 'fenced')
        ORDER BY seq DESC
        LIMIT :scan
    )
    AND NOT EXISTS (
        SELECT 1 FROM states AS later INDEXED BY states_by_session
        WHERE
            later.workspace = turn.workspace AND later.live IN (0, 1) AND later.tenant = turn.tenant
            AND later.session = turn.session AND later.kind = 'turn' AND later.seq > turn.seq
    )
ORDER BY turn.seq DESC
LIMIT :limit;

-- name: erase_live_messages
-- A slice of what a restart would load: it goes first, so that nothing of it begins again.
DELETE FROM messages WHERE rowid IN (
    SELECT rowid FROM messages INDEXED BY messages_by_session
    WHERE workspace = :workspace AND live = 1 AND tenant = :tenant AND session = :session
    LIMIT :limit
);

-- name: erase_messages
-- A slice of the messages that have ended, oldest first; dead letters that nobody has settled stay unless all goes.
DELETE FROM messages WHERE rowid IN (
    SELECT messages.rowid FROM messages INDEXED BY messages_by_session
    WHERE
        messages.workspace = :workspace AND messages.live = 0 AND messages.tenant = :tenant
        AND messages.session = :session AND messages.seq <= :until_seq
        AND (:all OR messages.state != 'dead_lettered' OR EXISTS (
            SELECT 1 FROM states AS mark
            WHERE mark.kind = 'dead_letter' AND mark.id = messages.id AND mark.state IN ('retried', 'purged')
        ))
    ORDER BY messages.seq
    LIMIT :limit
);

-- name: erasable_states
-- A slice of the state rows of one kind that can go.
SELECT rowid, kind, id FROM states INDEXED BY states_by_session
WHERE
    workspace = :workspace AND live = :live AND tenant = :tenant AND session = :session AND kind = :kind
    AND seq <= :until_seq
ORDER BY seq
LIMIT :limit;

-- name: erasable_states_of_any_kind
-- A slice of all state rows of a session.
SELECT rowid, kind, id FROM states INDEXED BY states_by_session
WHERE workspace = :workspace AND live = :live AND tenant = :tenant AND session = :session
LIMIT :limit;

-- name: erase_state
-- One of them.
DELETE FROM states WHERE rowid = ?;

-- name: blobs_named
-- The blobs that a row names.
SELECT blob FROM blob_uses WHERE kind = ? AND id = ?;

-- name: erase_blob_uses
-- A row is gone, and what it named is no longer named by it.
DELETE FROM blob_uses WHERE kind = ? AND id = ?;

-- name: erase_blob
-- A blob that nobody names any more.
DELETE FROM states WHERE kind = 'blob' AND id = :blob AND NOT EXISTS (
    SELECT 1 FROM blob_uses WHERE blob_uses.blob = :blob
);

-- name: erase_events
-- A slice of what has happened, oldest first.
DELETE FROM events
WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND seq <= (
    SELECT max(slice.seq) FROM (
        SELECT some.seq FROM events AS some
        WHERE
            some.tenant = :tenant AND some.workspace = :workspace AND some.session = :session
            AND some.seq <= :until_seq
        ORDER BY some.seq
        LIMIT :limit
    ) AS slice
);

-- name: erase_entries
-- A slice of what was said, oldest first.
DELETE FROM entries WHERE rowid IN (
    SELECT rowid FROM entries
    WHERE tenant = :tenant AND workspace = :workspace AND session = :session AND seq <= :until_seq
    ORDER BY seq
    LIMIT :limit
);

-- name: counts
-- How many rows there are, and how many of them are live.
SELECT 'messages' AS name, count(*) AS total, (SELECT count(*) FROM messages WHERE live = 1) AS live FROM messages
UNION ALL
SELECT 'states', count(*), (SELECT count(*) FROM states WHERE live = 1) FROM states
UNION ALL
SELECT 'events', count(*), 0 FROM events
UNION ALL
SELECT 'entries', count(*), 0 FROM entries;

-- Which rows name which blob, so that a blob can go with the last of them. The rows themselves say so, in `b`; triggers
-- keep the table, whoever writes. A row that is written again may have become longer: what it named before stays noted.

-- `OR IGNORE` would not do in a trigger: the way in which the statement that fires it treats conflicts counts instead.
-- Most rows name no blob, and the body says so: `IN` makes a table of its list, so it comes second.
-- The columns stand in the order of the key: the quick check of SQLite 3.40 calls a table without row ids damaged else.
CREATE TABLE blob_uses (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    blob TEXT NOT NULL,
    PRIMARY KEY (kind, id, blob)
) STRICT, WITHOUT ROWID;

CREATE INDEX blob_uses_of_blob ON blob_uses (blob);

INSERT OR IGNORE INTO blob_uses (blob, kind, id)
SELECT states.tenant || ':' || named.value, states.kind, states.id
FROM states, json_each(CASE WHEN json_valid(states.body) THEN states.body ELSE '{}' END, '$.b') AS named
WHERE states.kind IN ('round', 'record', 'compaction', 'intent') AND typeof(named.value) = 'text';

CREATE TRIGGER blob_uses_added AFTER INSERT ON states
WHEN instr(new.body, '"b":[') > 0 AND new.kind IN ('round', 'record', 'compaction', 'intent')
BEGIN
    INSERT INTO blob_uses (blob, kind, id)
    SELECT DISTINCT new.tenant || ':' || named.value, new.kind, new.id
    FROM json_each(CASE WHEN json_valid(new.body) THEN new.body ELSE '{}' END, '$.b') AS named
    WHERE typeof(named.value) = 'text' AND NOT EXISTS (
        SELECT 1 FROM blob_uses AS known
        WHERE known.kind = new.kind AND known.id = new.id AND known.blob = new.tenant || ':' || named.value
    );
END;

CREATE TRIGGER blob_uses_changed AFTER UPDATE OF body ON states
WHEN instr(new.body, '"b":[') > 0 AND new.kind IN ('round', 'record', 'compaction', 'intent')
BEGIN
    INSERT INTO blob_uses (blob, kind, id)
    SELECT DISTINCT new.tenant || ':' || named.value, new.kind, new.id
    FROM json_each(CASE WHEN json_valid(new.body) THEN new.body ELSE '{}' END, '$.b') AS named
    WHERE typeof(named.value) = 'text' AND NOT EXISTS (
        SELECT 1 FROM blob_uses AS known
        WHERE known.kind = new.kind AND known.id = new.id AND known.blob = new.tenant || ':' || named.value
    );
END;

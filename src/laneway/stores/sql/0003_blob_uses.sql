-- Which rows name which blob, so that a blob can go with the last of them. The rows themselves say so, in `b`; whoever
-- writes one notes it here (`put_blob_uses`). Triggers would do it, too, but every row would pay for them, and most name
-- no blob. A row that is written again may have become longer: what it named before stays noted.

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

-- What needs somebody is found without a walk through everything that went well. Both indexes are partial: a row that
-- never comes into trouble costs them nothing.

CREATE INDEX messages_dead ON messages (tenant, workspace, seq) WHERE state = 'dead_lettered';

CREATE INDEX states_broken ON states (tenant, workspace, seq)
WHERE kind = 'turn' AND state IN ('failed', 'interrupted', 'fenced');

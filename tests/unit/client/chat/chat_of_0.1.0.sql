-- A database that `pallas-gateway chat` of 0.1.0 (commit 6460b0a) wrote, as SQL: a thread with a name, an image and a PDF, one without a
-- name whose last turn waits for its answer, one without turns, and one with the agent of another gateway.
PRAGMA application_id = 1346847572;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
BEGIN TRANSACTION;
CREATE TABLE thread (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        gateway TEXT NOT NULL,
        agent TEXT NOT NULL,
        name TEXT,
        conversation_id TEXT NOT NULL UNIQUE,
        created_at TEXT NOT NULL,
        UNIQUE (gateway, agent, name)
    ) STRICT;
INSERT INTO "thread" VALUES(1,'http://localhost:24200','echo','cats','chat-50d50d13-0fbf-43a5-b25d-4da8aaf176d7','2026-11-28T01:14:18.810629+00:00');
INSERT INTO "thread" VALUES(2,'http://localhost:24200','echo',NULL,'chat-0b0b7a26-b585-4b7d-8bca-c2a9184bb996','2026-11-28T01:14:18.830170+00:00');
INSERT INTO "thread" VALUES(3,'http://localhost:24200','echo','empty','chat-fde5c5c5-70cf-4c9f-93e6-c909fa73780d','2026-11-28T01:14:18.842177+00:00');
INSERT INTO "thread" VALUES(4,'https://agents.example.com','echo','cats','chat-a9810bf8-906b-4b7c-94a3-e4162feb1a10','2026-11-28T01:14:18.846248+00:00');
CREATE TABLE turn (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        thread_id INTEGER NOT NULL REFERENCES thread (id),
        number INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('pending', 'complete', 'error')),
        owner TEXT NOT NULL,
        message TEXT NOT NULL,
        images TEXT NOT NULL CHECK (json_valid(images)),
        params TEXT NOT NULL CHECK (json_valid(params)),
        answer TEXT,
        error TEXT,
        tools TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tools)),
        began_at TEXT NOT NULL,
        ended_at TEXT,
        UNIQUE (thread_id, number),
        CHECK (state != 'complete' OR answer IS NOT NULL),
        CHECK ((state = 'error') = (error IS NOT NULL)),
        CHECK ((state = 'pending') = (ended_at IS NULL))
    ) STRICT;
INSERT INTO "turn" VALUES(1,1,1,'complete','13182:1440208','it''s a cät?
look','[{"data": "iVBORw0KGgo=", "mime_type": "image/png"}, {"data": "JVBERi0xLjcK", "mime_type": "application/pdf", "name": "notes 1.pdf"}]','{"temperature": 0.5}','done — yes',NULL,'["db/query", "find"]','2026-11-28T01:14:18.814277+00:00','2026-11-28T01:14:18.818248+00:00');
INSERT INTO "turn" VALUES(2,1,2,'error','13182:1440208','a story','[]','{"temperature": 0.5}','Once ','cancelled','["find"]','2026-11-28T01:14:18.822156+00:00','2026-11-28T01:14:18.826174+00:00');
INSERT INTO "turn" VALUES(3,2,1,'complete','13182:1440208','about dogs','[]','{}','woof',NULL,'[]','2026-11-28T01:14:18.834140+00:00','2026-11-28T01:14:18.838131+00:00');
INSERT INTO "turn" VALUES(4,4,1,'complete','13182:1440208','far','[]','{}','away',NULL,'[]','2026-11-28T01:14:18.850138+00:00','2026-11-28T01:14:18.854152+00:00');
INSERT INTO "turn" VALUES(5,2,2,'pending','13182:1440208','never answered','[]','{}',NULL,NULL,'[]','2026-11-28T01:14:18.854560+00:00',NULL);
CREATE UNIQUE INDEX one_pending_turn ON turn (thread_id) WHERE state = 'pending';
CREATE TRIGGER turns_are_numbered_without_gaps BEFORE INSERT ON turn
    WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM turn WHERE thread_id = NEW.thread_id)
    BEGIN SELECT raise(ABORT, 'turns are numbered from 1 without gaps'); END;
CREATE TRIGGER turns_begin_pending BEFORE INSERT ON turn WHEN NEW.state != 'pending'
    BEGIN SELECT raise(ABORT, 'a turn begins as pending'); END;
CREATE TRIGGER turns_keep_their_place BEFORE UPDATE OF id, thread_id, number, message, images ON turn
    BEGIN SELECT raise(ABORT, 'what was said stays as it was said'); END;
CREATE TRIGGER ended_turns_stay BEFORE UPDATE ON turn WHEN OLD.state != 'pending'
    BEGIN SELECT raise(ABORT, 'a turn that has ended stays as it is'); END;
CREATE TRIGGER turns_are_not_lost BEFORE DELETE ON turn
    WHEN OLD.number != (SELECT max(number) FROM turn WHERE thread_id = OLD.thread_id)
    BEGIN SELECT raise(ABORT, 'turns are numbered from 1 without gaps'); END;
COMMIT;

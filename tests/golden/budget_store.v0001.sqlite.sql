CREATE TABLE log ( sequence INTEGER NOT NULL, previous VARCHAR(64) NOT NULL, hash VARCHAR(64) NOT NULL, content TEXT NOT NULL, PRIMARY KEY (sequence) );

CREATE TABLE unit_sets ( digest VARCHAR(64) NOT NULL, names BLOB NOT NULL, PRIMARY KEY (digest) );

CREATE TABLE head ( id INTEGER NOT NULL, sequence INTEGER NOT NULL, hash VARCHAR(64) NOT NULL, PRIMARY KEY (id) );

CREATE TABLE data_sets ( name VARCHAR(100) NOT NULL, privacy_unit VARCHAR(20) NOT NULL, id_kind VARCHAR(20) NOT NULL, key_check VARCHAR(32) NOT NULL, PRIMARY KEY (name) );

CREATE TABLE grants ( data_set VARCHAR(100) NOT NULL, notion VARCHAR(20) NOT NULL, relation VARCHAR(20) NOT NULL, epsilon FLOAT NOT NULL, delta FLOAT NOT NULL, PRIMARY KEY (data_set, notion, relation) );

CREATE TABLE reservations ( id VARCHAR(32) NOT NULL, sequence INTEGER NOT NULL, data_set VARCHAR(100) NOT NULL, run_key VARCHAR(64) NOT NULL, recipe VARCHAR(100) NOT NULL, purpose VARCHAR(20) NOT NULL, sweep VARCHAR(100) NOT NULL, unit_set VARCHAR(64) NOT NULL, num_units INTEGER NOT NULL, planned TEXT NOT NULL, spare TEXT NOT NULL, spent TEXT NOT NULL, status VARCHAR(20) NOT NULL, PRIMARY KEY (id) );

CREATE INDEX reservations_by_run ON reservations (data_set, run_key);

CREATE TABLE cohorts ( id INTEGER NOT NULL, data_set VARCHAR(100) NOT NULL, size INTEGER NOT NULL, PRIMARY KEY (id) );

CREATE TABLE coverage ( cohort INTEGER NOT NULL, reservation VARCHAR(32) NOT NULL, PRIMARY KEY (cohort, reservation) );

CREATE INDEX coverage_by_reservation ON coverage (reservation);

CREATE TABLE units ( name VARCHAR(32) NOT NULL, cohort INTEGER NOT NULL, PRIMARY KEY (name) ) WITHOUT ROWID;

CREATE TRIGGER log_no_update BEFORE UPDATE ON log BEGIN SELECT RAISE(ABORT, 'the record of spent budget is append-only'); END;

CREATE TRIGGER log_no_delete BEFORE DELETE ON log BEGIN SELECT RAISE(ABORT, 'the record of spent budget is append-only'); END;

CREATE TRIGGER unit_sets_no_update BEFORE UPDATE ON unit_sets BEGIN SELECT RAISE(ABORT, 'the record of spent budget is append-only'); END;

CREATE TRIGGER unit_sets_no_delete BEFORE DELETE ON unit_sets BEGIN SELECT RAISE(ABORT, 'the record of spent budget is append-only'); END;

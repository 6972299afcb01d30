CREATE TABLE unit_blocks ( data_set VARCHAR(100) NOT NULL, prefix INTEGER NOT NULL, names BYTEA NOT NULL, cohorts BYTEA NOT NULL, PRIMARY KEY (data_set, prefix) );

DROP TABLE units;

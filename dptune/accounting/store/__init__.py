"""The budget store: what every run ever spent on each privacy unit, in SQL.

The budget belongs to the data set, over all runs. `docs/BUDGET.md` tells how to use it.

| module | does |
|---|---|
| `reservations` | keyed names of a run's units; what it holds and has spent |
| `schema`, `migrations`, `database` | tables, their versions, transactions |
| `log` | the append-only, hash-chained log, from which all else follows |
| `blocks` | units of a data set and their cohorts, as columns of sorted names |
| `cohorts` | units of equal history, split by joins of these columns |
| `allowances` | costs as multisets of mechanisms; grants; the worst cohort's epsilon |
| `store` | grant, reserve, spend, settle, release |
| `summaries` | what to show; how much went into tuning |
| `replay` | the same state from the log alone |
| `verify` | compares both, and computes every epsilon again |
"""

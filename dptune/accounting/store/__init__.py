"""The budget store: what every run ever spent on each privacy unit, in SQL.

The budget belongs to the data set, over all runs. `docs/BUDGET.md` tells how to use it.

| module | does |
|---|---|
| `keys` | names privacy units by keyed hashes |
| `costs` | events as multisets: add, compare, compose |
| `purposes` | what a run touches the data for |
| `reservations` | what a run holds and has spent: pure transitions |
| `schema`, `migrations`, `database` | tables, their versions, transactions |
| `log` | the append-only, hash-chained log, from which all else follows |
| `cohorts` | units of equal history, split by set operations |
| `allowances` | grants, and the worst cohort's epsilon |
| `store` | grant, reserve, spend, settle, release |
| `summaries` | what to show; how much went into tuning |
| `replay`, `verify` | the same state from the log alone, and every epsilon again |
"""

"""Turn descriptions of what ran into claims: events, accountants, ledger, journal."""

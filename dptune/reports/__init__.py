"""What people read: figures, dashboard pages, privacy cards, the comparison page."""

"""Whether a grant holds for runs that are chosen for what earlier ones released."""

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "v0003"
down_revision: Final = "v0002"
branch_labels: Final = None
depends_on: Final = None


def upgrade() -> None:
    """Add it to the grants; none of before does."""
    op.add_column(
        "grants",
        sa.Column("adaptive", sa.Boolean, nullable=False, server_default=sa.false()),
    )

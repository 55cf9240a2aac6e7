"""${message}.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}

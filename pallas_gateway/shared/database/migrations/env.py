"""Alembic's environment; `shared/database/migrating.py` passes it a connection that holds the lock."""

from alembic import context

from pallas_gateway.shared.database.migrating import VERSION_TABLE
from pallas_gateway.shared.database.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()

"""The gateway's database (`gateway.database`): connections, tables, migrations. Imported only where one is set."""

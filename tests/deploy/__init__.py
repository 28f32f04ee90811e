"""What stands in deploy/, run with the programs that users run it with: `make test-deploy`."""

"""The routes of the API, one file for each part of docs/decisions/explorer.md."""

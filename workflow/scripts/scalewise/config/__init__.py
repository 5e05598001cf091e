"""The files a user edits: their keys, read strictly, with the line of every mistake."""

"""Loads encodings at build time. Python loads an encoding from its files on first use, and a
component has no files.
"""

import codecs

for name in (
    "ascii cp437 cp1252 cp1251 idna iso8859-15 punycode raw_unicode_escape unicode_escape utf-7 utf-8-sig "
    "utf-16 utf-16-be utf-16-le utf-32 utf-32-be utf-32-le latin-1 base64 hex rot13"
).split():
    codecs.lookup(name)

#!/bin/sh
# SPDX-License-Identifier: MIT
# page.sh LOWDOWN CHAPTER.md: prints a chapter as a page of HTML. Links to other chapters become links to their pages.
sed -e 's/](README\.md)/](index.html)/g' -e 's/](\([a-z-]*\)\.md)/](\1.html)/g' "$2" |
    "$1" -s -t html --out-no-smarty -m "title=$(sed -n 's/^# //p' "$2" | head -n 1)" -m css=book.css

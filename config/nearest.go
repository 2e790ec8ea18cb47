package config

// nearest returns the name that takes the fewest insertions, deletions and replacements of bytes to become s, or "" if none
// is at least half like it.
func nearest(s string, names []string) string {
	const longest = 64 // nobody has misspelled a name that way
	best, found := len(s)/2+1, ""
	if len(s) > longest {
		return ""
	}
	for _, name := range names {
		if d := distance(s, name); d < best {
			best, found = d, name
		}
	}
	return found
}

// distance is the Levenshtein distance, row by row.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

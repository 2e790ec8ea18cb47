package manifest

import (
	"bytes"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

func TestSplitYAML(t *testing.T) {
	type doc struct {
		number, line int
		data         string
	}
	for _, c := range []struct {
		name, data string
		want       []doc
	}{
		{"nothing", "", nil},
		{"white space", " \n\n", nil},
		{"only comments", "# a\n# b\n", nil},
		{"only markers", "---\n---\n---\n", nil},
		{"one", "a: 1\n", []doc{{1, 0, "a: 1\n"}}},
		{"leading marker", "---\na: 1\n", []doc{{1, 0, "---\na: 1\n"}}},
		{"comment before the marker", "# c\n---\na: 1\n", []doc{{1, 1, "---\na: 1\n"}}},
		{"two", "a: 1\n---\nb: 2", []doc{{1, 0, "a: 1\n"}, {2, 1, "---\nb: 2"}}},
		{"an empty one counts", "a: 1\n---\n# none\n---\nb: 2\n", []doc{{1, 0, "a: 1\n"}, {3, 3, "---\nb: 2\n"}}},
		{"comment behind the marker", "a: 1\n--- # next\nb: 2\n", []doc{{1, 0, "a: 1\n"}, {2, 1, "--- # next\nb: 2\n"}}},
		{"content behind the marker", "--- {a: 1}\n--- {b: 2}\n", []doc{{1, 0, "--- {a: 1}\n"}, {2, 1, "--- {b: 2}\n"}}},
		{"CRLF", "a: 1\r\n---\r\nb: 2\r\n", []doc{{1, 0, "a: 1\r\n"}, {2, 1, "---\r\nb: 2\r\n"}}},
		{"end marker", "a: 1\n...\nb: 2\n", []doc{{1, 0, "a: 1\n"}, {2, 2, "b: 2\n"}}},
		{"end marker before a marker", "a: 1\n...\n---\nb: 2\n", []doc{{1, 0, "a: 1\n"}, {2, 2, "---\nb: 2\n"}}},
		{"directive", "%YAML 1.2\n---\na: 1\n", []doc{{1, 1, "---\na: 1\n"}}},
		{"not markers", "a: |\n  ---\nb: ---x\n----: 1\n", []doc{{1, 0, "a: |\n  ---\nb: ---x\n----: 1\n"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []doc
			for _, d := range splitYAML([]byte(c.data)) {
				got = append(got, doc{d.number, d.line, string(d.data)})
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestSplitJSON(t *testing.T) {
	docs := splitJSON([]byte("{\"a\":1}\n{\"b\":2} 3\n{\"c\":\n oops}\n{}"))
	require.Len(t, docs, 4)
	require.Equal(t, `{"b":2}`, string(docs[1].data))
	require.Error(t, docs[3].err)
	require.Equal(t, 4, docs[3].number)
	require.Equal(t, 3, docs[3].line)
	require.Empty(t, splitJSON([]byte(" \n")))
}

func TestToUTF8(t *testing.T) {
	text := "a: ü\n"
	require.Equal(t, text, string(toUTF8([]byte(text))))
	require.Equal(t, text, string(toUTF8([]byte("\xef\xbb\xbf"+text))))
	for _, big := range []bool{false, true} {
		var b bytes.Buffer
		for _, u := range utf16.Encode([]rune("\ufeff" + text)) {
			if big {
				b.Write([]byte{byte(u >> 8), byte(u)})
			} else {
				b.Write([]byte{byte(u), byte(u >> 8)})
			}
		}
		require.Equal(t, text, string(toUTF8(b.Bytes())))
	}
}

package manifest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf16"
)

// document is one document of a file.
type document struct {
	// number counts from 1 as a reader would: what stands before the first "---" counts only if it says something.
	number int
	// line is where the document starts, counted from 0.
	line int
	data []byte
	// err is set instead of data where the file cannot be divided any further.
	err error
}

// splitYAML divides a YAML stream at its document markers. (The reader of k8s.io/apimachinery gives up on a whole stream
// at a marker followed by text, which YAML allows, and does not know the end marker "...", after which the YAML parser
// silently ignores everything.) A document keeps its own "---" line.
func splitYAML(data []byte) []document {
	var docs []document
	var current document
	number, marked := 0, false
	flush := func(start, end int) {
		current.data = data[start:end]
		if empty := saysNothing(current.data); !empty || marked {
			number++
			current.number = number
			if !empty {
				docs = append(docs, current)
			}
		}
	}
	start, line := 0, 0
	for pos := 0; pos < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
			end = pos + i + 1
		}
		text := data[pos:end]
		switch {
		case isMarker(text, "---"):
			flush(start, pos)
			start, marked = pos, true
			current = document{line: line}
		case isMarker(text, "..."):
			flush(start, pos)
			start, marked = end, false
			current = document{line: line + 1}
		}
		pos = end
	}
	flush(start, len(data))
	return docs
}

// isMarker reports whether a line is a document marker: the three characters alone or followed by white space.
func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r' || rest[0] == '\n')
}

// saysNothing reports whether there is nothing but white space, comments, directives and a bare marker.
func saysNothing(data []byte) bool {
	for line := range bytes.Lines(data) {
		if isMarker(line, "---") {
			line = line[3:]
		} else if line[0] == '%' {
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// splitJSON divides a stream of JSON values. After a syntax error nothing is known about where the next would start.
func splitJSON(data []byte) []document {
	var docs []document
	dec := json.NewDecoder(bytes.NewReader(data))
	for number := 1; ; number++ {
		var raw json.RawMessage
		line := bytes.Count(data[:dec.InputOffset()], []byte("\n"))
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs
		}
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line = bytes.Count(data[:min(int(max(syntax.Offset, 0)), len(data))], []byte("\n"))
		}
		docs = append(docs, document{number: number, line: line, data: raw, err: err})
		if err != nil {
			return docs
		}
	}
}

// toUTF8 strips byte order marks and converts UTF-16, which is what PowerShell's redirection writes.
func toUTF8(data []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return data[3:]
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		order = binary.BigEndian
	default:
		return data
	}
	units := make([]uint16, 0, len(data)/2)
	for i := 2; i+1 < len(data); i += 2 {
		units = append(units, order.Uint16(data[i:]))
	}
	return []byte(string(utf16.Decode(units)))
}

package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
)

// unmarshal decodes strictly and says what is wrong, with the path of the field, or "".
func unmarshal(raw []byte, into any) string {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		return describe(raw, into, err)
	}
	if len(strict) == 0 {
		return ""
	}
	msgs := make([]string, 0, len(strict))
	for _, err := range strict {
		msgs = append(msgs, err.Error())
	}
	return oneLine(strings.Join(msgs, "; "))
}

// describe words a decoding error. The error itself gives the path without the indexes of lists, and none at all if it
// comes from a type with a decoder of its own.
func describe(raw []byte, into any, err error) string {
	path, at := locate(raw, reflect.TypeOf(into))
	if at != nil {
		err = at
	}
	msg := err.Error()
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		msg = fmt.Sprintf("%s where a value of type %s is wanted", wrong.Value, wrong.Type)
	}
	if path = strings.TrimPrefix(path, "."); path != "" {
		msg = path + ": " + msg
	}
	return oneLine(msg)
}

// locate returns the path of the first value in raw that does not fit t, and the error of decoding it, by decoding the
// values one by one. It is called only for objects that are known not to fit.
func locate(raw []byte, t reflect.Type) (string, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	here := json.Unmarshal(raw, reflect.New(t).Interface())
	if here == nil || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return "", here
	}
	switch t.Kind() {
	case reflect.Struct:
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			break
		}
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			value, ok := values[name]
			if strings.Contains(options, "inline") {
				name, value, ok = "", raw, true
			} else {
				name = "." + name
			}
			if !ok {
				continue
			}
			if path, err := locate(value, f.Type); err != nil {
				return name + path, err
			}
		}
	case reflect.Map:
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			break
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if path, err := locate(values[name], t.Elem()); err != nil {
				return "[" + name + "]" + path, err
			}
		}
	case reflect.Slice:
		var values []json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			break
		}
		for i, value := range values {
			if path, err := locate(value, t.Elem()); err != nil {
				return "[" + strconv.Itoa(i) + "]" + path, err
			}
		}
	}
	return "", here
}

// oneLine makes a parser's message fit a log field: some span lines, and some quote a document at length.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 512
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

package weir

import (
	"maps"
	"slices"
	"strings"
)

// Tensors are the inputs or outputs of a run, by name.
type Tensors map[string]*Tensor

// Get returns the tensor named name, or an error that lists the existing names.
func (t Tensors) Get(name string) (*Tensor, error) {
	if found, is := t[name]; is {
		return found, nil
	}
	there := "none"
	if len(t) > 0 {
		there = strings.Join(t.names(), ", ")
	}
	return nil, Errorf(InvalidArgument, "there is no tensor %s; there are %s", name, there)
}

func (t Tensors) names() []string { return slices.Sorted(maps.Keys(t)) }

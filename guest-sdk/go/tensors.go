package weir

import (
	"maps"
	"slices"
	"strings"
)

// Tensors go into a run or come out of it, by name.
type Tensors map[string]*Tensor

// Get gives the tensor of that name, or an error that says which there are.
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

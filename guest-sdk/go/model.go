package weir

import (
	"math"
	"time"
)

// A Model, or another tensor function, that the function's manifest grants. The node keeps it in device memory until the call ends, or
// until it is closed.
type Model struct{ on nodeModel }

// Open finds one by name, or by name:version.
func Open(name string) (*Model, error) {
	on, err := openModel(name)
	if err != nil {
		return nil, err
	}
	return &Model{on}, nil
}

// A Stage maps tensors to tensors, as models do, and functions that package weirstage serves.
type Stage func(inputs Tensors) (Tensors, error)

// A Port is one input or output of a model.
type Port struct {
	// Name is what a run refers to it by.
	Name string
	// Type is the type of its elements.
	Type Type
	// Shape is the size of each dimension, outermost first; Any where it may differ from run to run.
	Shape []int
}

// A Description is what a model is, and what it takes and gives.
type Description struct {
	Name, Version   string
	Inputs, Outputs []Port
}

// Describe tells the model's name, version, inputs and outputs.
func (m *Model) Describe() Description { return m.on.describe() }

// Infer runs it and waits for the outputs. The inputs stay the function's, to be used again.
func (m *Model) Infer(inputs Tensors, options ...Option) (Tensors, error) {
	chosen, err := choose(inputs, options)
	if err != nil {
		return nil, err
	}
	return m.on.infer(inputs, chosen)
}

// Submit starts a run and returns at once: several of them take no longer than the longest.
func (m *Model) Submit(inputs Tensors, options ...Option) (*Pending, error) {
	chosen, err := choose(inputs, options)
	if err != nil {
		return nil, err
	}
	on, err := m.on.submit(inputs, chosen)
	if err != nil {
		return nil, err
	}
	return &Pending{on}, nil
}

// Close gives the model back to the node. It must not be used afterwards.
func (m *Model) Close() error {
	m.on.drop()
	return nil
}

// Pending is a run under way.
type Pending struct{ on nodePending }

// Wait waits for the run and gives its outputs, which are handed over once. Every goroutine waits with it.
func (p *Pending) Wait() (Tensors, error) { return p.on.wait() }

// Cancel stops the run if it has not finished; Wait then fails with Cancelled.
func (p *Pending) Cancel() { p.on.cancel() }

// Close gives the run back to the node, and stops it if it has not finished. It must not be used afterwards.
func (p *Pending) Close() error {
	p.on.drop()
	return nil
}

// An Option says how to run a model.
type Option func(*options) error

type options struct {
	outputs    []string
	deadlineMs *uint32
	priority   *uint32
}

// Outputs asks for these outputs alone. Others need not be computed.
func Outputs(names ...string) Option {
	return func(o *options) error {
		o.outputs = append([]string{}, names...)
		return nil
	}
}

// Deadline has the node give up after that long, rounded up to a millisecond. The deadline of the whole call holds in any case.
func Deadline(after time.Duration) Option {
	return func(o *options) error {
		if after <= 0 {
			return Errorf(DeadlineExceeded, "the deadline passed")
		}
		ms := uint32(min((after+time.Millisecond-1)/time.Millisecond, math.MaxUint32))
		o.deadlineMs = &ms
		return nil
	}
}

// Priority says how urgent the run is: 1 is the most, 0 as urgent as the call itself.
func Priority(level uint32) Option {
	return func(o *options) error {
		o.priority = &level
		return nil
	}
}

func choose(inputs Tensors, all []Option) (options, error) {
	var chosen options
	for name, input := range inputs {
		if input == nil {
			return chosen, Errorf(InvalidArgument, "the tensor %s is nil", name)
		}
	}
	for _, option := range all {
		if err := option(&chosen); err != nil {
			return chosen, err
		}
	}
	return chosen, nil
}

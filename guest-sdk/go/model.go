package weir

import (
	"math"
	"time"
)

// A Model is a model, or another tensor function, that the function's manifest grants. The node
// keeps it in device memory until the call ends or the Model is closed.
type Model struct{ on nodeModel }

// Open opens a model by name, or by name:version.
func Open(name string) (*Model, error) {
	on, err := openModel(name)
	if err != nil {
		return nil, err
	}
	return &Model{on}, nil
}

// A Stage maps tensors to tensors, like a model. Package weirstage serves a Stage as a function.
type Stage func(inputs Tensors) (Tensors, error)

// A Port is one input or output of a model.
type Port struct {
	// Name identifies the port in a run.
	Name string
	// Type is the element type.
	Type Type
	// Shape is the size of each dimension, outermost first; Any for a variable dimension.
	Shape []int
}

// A Description has the name, version, inputs and outputs of a model.
type Description struct {
	Name, Version   string
	Inputs, Outputs []Port
}

// Describe returns the model's name, version, inputs and outputs.
func (m *Model) Describe() Description { return m.on.describe() }

// Infer runs the model and waits for the outputs. The inputs remain valid and can be reused.
func (m *Model) Infer(inputs Tensors, options ...Option) (Tensors, error) {
	chosen, err := choose(inputs, options)
	if err != nil {
		return nil, ofRun(err)
	}
	outputs, err := m.on.infer(inputs, chosen)
	return outputs, ofRun(err)
}

// Submit starts a run and returns without waiting for it, so that several runs can proceed
// concurrently.
func (m *Model) Submit(inputs Tensors, options ...Option) (*Pending, error) {
	chosen, err := choose(inputs, options)
	if err != nil {
		return nil, ofRun(err)
	}
	on, err := m.on.submit(inputs, chosen)
	if err != nil {
		return nil, ofRun(err)
	}
	return &Pending{on}, nil
}

// Close releases the model. It must not be used afterwards.
func (m *Model) Close() error {
	m.on.drop()
	return nil
}

// Pending is an active run.
type Pending struct{ on nodePending }

// Wait waits for the run and returns its outputs. A second call fails. All goroutines wait
// meanwhile.
func (p *Pending) Wait() (Tensors, error) {
	outputs, err := p.on.wait()
	return outputs, ofRun(err)
}

// Cancel cancels the run if it has not finished; Wait then fails with Cancelled.
func (p *Pending) Cancel() { p.on.cancel() }

// Close releases the run, and cancels it if it has not finished. It must not be used afterwards.
func (p *Pending) Close() error {
	p.on.drop()
	return nil
}

// An Option configures a run.
type Option func(*options) error

type options struct {
	outputs    []string
	deadlineMs *uint32
	priority   *uint32
}

// Outputs selects the outputs to return. The node need not compute the others.
func Outputs(names ...string) Option {
	return func(o *options) error {
		o.outputs = append([]string{}, names...)
		return nil
	}
}

// Deadline sets a time limit, rounded up to a millisecond. The deadline of the call still applies.
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

// Priority sets the priority of the run: 1 is the most urgent, 0 uses the priority of the call.
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

//go:build !wasip1

package weir

import (
	"math"
	"slices"
	"strings"
	"sync"
)

type memoryTensor struct {
	elements Type
	sizes    []uint32
	data     []byte
}

var (
	providing sync.Mutex
	provided  = map[string]Stage{}
	objects   = map[string]nodeTensor{}
	decoding  func([]byte, ImageOptions) (*Tensor, error)
)

// Provide registers a model for [Open], implemented by run. For tests only; it does not exist in
// components. A nil run removes the model.
func Provide(name string, run Stage) {
	providing.Lock()
	defer providing.Unlock()
	if run == nil {
		delete(provided, name)
	} else {
		provided[name] = run
	}
}

// ProvideImages decodes images with decode, which gets the bytes of an encoded image. For tests
// only; it does not exist in components. A nil decode removes the decoder.
func ProvideImages(decode func([]byte, ImageOptions) (*Tensor, error)) {
	providing.Lock()
	defer providing.Unlock()
	decoding = decode
}

func newTensor(elements Type, sizes []uint32, data []byte) (nodeTensor, error) {
	wanted := uint64(elements.Size())
	for _, size := range sizes {
		if size != 0 && wanted > math.MaxUint64/uint64(size) {
			return nil, Errorf(InvalidArgument, "the shape %v has more elements than there is memory", sizes)
		}
		wanted *= uint64(size)
	}
	if elements != Bytes && wanted != uint64(len(data)) {
		return nil, Errorf(InvalidArgument, "a tensor of %s and shape %v takes %d bytes and not %d", elements, sizes, wanted, len(data))
	}
	return &memoryTensor{elements, slices.Clone(sizes), slices.Clone(data)}, nil
}

func takeBody(Type, []uint32) (nodeTensor, error) {
	return nil, Errorf(InvalidArgument, "no request is being handled")
}

func reply(nodeTensor) error { return Errorf(InvalidArgument, "no request is being handled") }

func (t *memoryTensor) elementType() Type { return t.elements }
func (t *memoryTensor) shape() []uint32   { return t.sizes }
func (t *memoryTensor) size() int64       { return int64(len(t.data)) }
func (t *memoryTensor) drop()             {}

func (t *memoryTensor) read(offset, size int64) ([]byte, error) {
	if offset < 0 || size < 0 || offset > t.size()-size {
		return nil, Errorf(InvalidArgument, "%d bytes from %d on go past the end", size, offset)
	}
	return slices.Clone(t.data[offset:][:size]), nil
}

func getObject(name string) (nodeTensor, error) {
	providing.Lock()
	defer providing.Unlock()
	found, is := objects[name]
	if !is {
		return nil, Errorf(NotFound, "there is no object %s", name)
	}
	return found, nil
}

// Objects in memory do not expire.
func putObject(name string, value nodeTensor, _ uint64) error {
	providing.Lock()
	defer providing.Unlock()
	objects[name] = value
	return nil
}

func deleteObject(name string) error {
	if _, err := getObject(name); err != nil {
		return err
	}
	providing.Lock()
	defer providing.Unlock()
	delete(objects, name)
	return nil
}

func decodeImage(encoded nodeTensor, options ImageOptions) (nodeTensor, error) {
	providing.Lock()
	decode := decoding
	providing.Unlock()
	if decode == nil {
		return nil, Errorf(Unavailable, "a node decodes images; weir.ProvideImages provides a decoder")
	}
	made, err := decode(encoded.(*memoryTensor).data, options)
	if err != nil {
		return nil, err
	}
	return made.on, nil
}

func inspectImage(encoded nodeTensor) (ImageInfo, error) {
	data := encoded.(*memoryTensor).data
	for format, signature := range map[string]string{"jpeg": "\xff\xd8\xff", "png": "\x89PNG", "webp": "RIFF"} {
		if !strings.HasPrefix(string(data), signature) {
			continue
		}
		made, err := decodeImage(encoded, ImageOptions{})
		if err != nil {
			return ImageInfo{}, err
		}
		sizes := made.shape()
		return ImageInfo{format, Size{int(sizes[3]), int(sizes[2])}}, nil
	}
	return ImageInfo{}, Errorf(InvalidArgument, "the data is no JPEG, PNG or WebP image")
}

type memoryModel struct {
	name string
	run  Stage
}

func openModel(name string) (nodeModel, error) {
	providing.Lock()
	defer providing.Unlock()
	run, is := provided[name]
	if !is {
		return nil, Errorf(NotFound, "there is no model %s; weir.Provide provides one", name)
	}
	return &memoryModel{name, run}, nil
}

func (m *memoryModel) describe() Description { return Description{Name: m.name, Version: "1"} }
func (m *memoryModel) drop()                 {}

func (m *memoryModel) infer(inputs Tensors, chosen options) (Tensors, error) {
	all, err := m.run(inputs)
	if err != nil || chosen.outputs == nil {
		return all, err
	}
	wanted := make(Tensors, len(chosen.outputs))
	for _, name := range chosen.outputs {
		output, is := all[name]
		if !is {
			return nil, Errorf(InvalidArgument, "the model has no output %s", name)
		}
		wanted[name] = output
	}
	return wanted, nil
}

func (m *memoryModel) submit(inputs Tensors, chosen options) (nodePending, error) {
	outputs, err := m.infer(inputs, chosen)
	return &memoryPending{outputs, err}, nil
}

type memoryPending struct {
	outputs Tensors
	err     error
}

func (p *memoryPending) wait() (Tensors, error) {
	outputs, err := p.outputs, p.err
	p.outputs, p.err = nil, Errorf(InvalidArgument, "the outputs were handed over before")
	return outputs, err
}

func (p *memoryPending) cancel() {
	if p.outputs != nil {
		p.outputs, p.err = nil, Errorf(Cancelled, "the run was cancelled")
	}
}

func (p *memoryPending) drop() {}

package weir

import "io"

// A nodeBody is the body of the request being handled, where package weirhttp serves it.
type nodeBody interface{ IsWeirBody() }

// A nodeAnswer is the answer under way, where package weirhttp serves it.
type nodeAnswer interface{ AnswerWithTensor(give func() error) error }

// TakeBodyAsTensor makes a tensor of a body, such as the Body of an http.Request. One dimension of the shape may be Any.
//
// The body of a request that package weirhttp serves does not enter the function's memory, and must not have been read from before. Others
// are read.
func TakeBodyAsTensor(body io.Reader, elements Type, shape ...int) (*Tensor, error) {
	sizes, err := sizesOf(shape, true)
	if err != nil {
		return nil, err
	}
	if _, is := body.(nodeBody); is {
		return tensor(takeBody(elements, sizes))
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	return tensor(newTensor(elements, opened(elements, sizes, len(data)), data))
}

// ReplyWithTensor writes the bytes of a tensor to an answer, such as an http.ResponseWriter.
//
// To a request that package weirhttp serves the node answers with them: they do not enter the function's memory. Nothing may have been
// written before, and status and headers are the function's to set before or after. To others the bytes are written.
func ReplyWithTensor(answer io.Writer, t *Tensor) error {
	if on, is := answer.(nodeAnswer); is {
		return on.AnswerWithTensor(func() error { return reply(t.on) })
	}
	data, err := t.Bytes()
	if err != nil {
		return err
	}
	_, err = answer.Write(data)
	return err
}

// opened gives the shape that a body of that size makes of one with an Any.
func opened(elements Type, sizes []uint32, size int) []uint32 {
	open, rest := -1, elements.Size()
	for at, wanted := range sizes {
		if wanted != 1<<32-1 {
			rest *= int(wanted)
		} else if open < 0 {
			open = at
		} else {
			return sizes
		}
	}
	if open < 0 || rest <= 0 || size%rest != 0 {
		return sizes
	}
	made := append([]uint32{}, sizes...)
	made[open] = uint32(size / rest)
	return made
}

package weir

// Backend of the package: the node's interfaces in a component, memory in tests.

type nodeTensor interface {
	elementType() Type
	shape() []uint32
	size() int64
	read(offset, size int64) ([]byte, error)
	drop()
}

type nodeModel interface {
	describe() Description
	infer(Tensors, options) (Tensors, error)
	submit(Tensors, options) (nodePending, error)
	drop()
}

type nodePending interface {
	wait() (Tensors, error)
	cancel()
	drop()
}

"""Guards that come with Warren: hooks for common cases, made of the public interface of hooks alone."""

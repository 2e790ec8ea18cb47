// Package manifest follows a directory of manifests and hands the objects in it to a [config.Tracker]: redial without a
// cluster.
//
// The files are those one would give to kubectl apply: .yaml, .yml and .json, in any number of subdirectories, several
// documents to a file, Lists included. Services (v1), EndpointSlices (discovery.k8s.io/v1) and Endpoints (v1) are used,
// other kinds are logged once and skipped. Nothing defaults or refuses fields as an API server would, except that a field
// that does not exist or has the wrong type spoils its document: a misspelt field must not silently mean its default.
//
//	t := config.NewTracker(config.Options{})
//	src := manifest.New("/etc/redial", t, log)
//	go src.Run(ctx)
//	<-t.Changed()
//
// A spoilt document costs only itself, and not even itself if there was a good version of it before: that one stays in
// force until the document is right again or gone. What is wrong at the moment is in [Source.Problems].
//
// Files may be written in place, renamed over, or swapped by symlinks as the kubelet does for ConfigMaps; names that
// start with a dot are not read. Changes are noticed by inotify and, for file systems without it, by looking again.
package manifest

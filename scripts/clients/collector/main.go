// The OpenTelemetry Collector with the two components that the tests need: the receiver of
// OTLP, and an exporter that appends each batch of spans to a file as a line of JSON. The
// exporter's configuration is that of the Collector's own, which needs many more modules.
package main

import (
	"context"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

const fileMode = 0o644

type fileConfig struct {
	Path string `mapstructure:"path"`
}

func main() {
	receivers, err := receiver.MakeFactoryMap(otlpreceiver.NewFactory())
	if err != nil {
		log.Fatal(err)
	}
	toFile := exporter.NewFactory("file",
		func() component.Config { return &fileConfig{} },
		exporter.WithTraces(newFileExporter, component.StabilityLevelDevelopment))
	exporters, err := exporter.MakeFactoryMap(toFile)
	if err != nil {
		log.Fatal(err)
	}
	settings := otelcol.CollectorSettings{
		BuildInfo: component.NewDefaultBuildInfo(),
		Factories: otelcol.Factories{Receivers: receivers, Exporters: exporters},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}

func newFileExporter(
	ctx context.Context, settings exporter.CreateSettings, config component.Config,
) (exporter.Traces, error) {
	path := config.(*fileConfig).Path
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, fileMode)
	if err != nil {
		return nil, err
	}
	var writing sync.Mutex
	write := func(_ context.Context, spans ptrace.Traces) error {
		line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(spans)
		if err != nil {
			return err
		}
		writing.Lock()
		defer writing.Unlock()
		_, err = file.Write(append(line, '\n'))
		return err
	}
	return exporterhelper.NewTracesExporter(ctx, settings, config, write)
}
